"""Warnings name the user's line, however deep in the library they are given."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from small_models import TINY

from danp_lib import PointSet
from danp_lib._warnings import warn
from danp_lib.data.scaling import Scaling
from danp_lib.fitting.fitted import Fitted
from danp_lib.models.contexts import ContextWarning, SizeRange, TrainingContexts
from danp_lib.models.convnp import ConvGNP


def test_a_warning_called_from_outside_names_that_line() -> None:
    with pytest.warns(ResourceWarning, match="^empty$") as said:
        warn("empty", ResourceWarning)
    assert [one.filename for one in said] == [__file__]


def test_a_function_of_the_user_between_is_the_one_that_is_named() -> None:
    @contextmanager
    def leaving() -> Iterator[None]:
        yield
        warn("left", ResourceWarning)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with leaving():
            pass
    assert [one.filename for one in caught] == [__file__]


@pytest.mark.parametrize("fitted", [True, False])
def test_a_context_unlike_those_of_training_names_the_line_that_predicts(fitted: bool) -> None:
    model = ConvGNP(TINY)
    model.training_contexts = TrainingContexts((0.0, 1.0), (SizeRange(9, -100.0, 0.0),), 0.0)
    x = torch.zeros(1, 1, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if fitted:
            Fitted(model, Scaling(0.0, 1.0, 0.0, 1.0)).predict(PointSet(x, x + 99.0), x)
        else:
            model.predict(PointSet(x, x + 99.0), x)
    assert [(one.category, one.filename) for one in caught] == [(ContextWarning, __file__)]
