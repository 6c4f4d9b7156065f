"""The settings of a run."""

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from training_runs import RUN

from danp_lib.distributions.gaussian import VARIANCE_FLOOR
from danp_lib.training.config import TrainingConfig


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_steps": 0},
        {"num_steps": 2.5},
        {"warmup_steps": -1},
        {"jitter_steps": -1},
        {"seed": 1.5},
        {"learning_rate": -1.0},
        {"learning_rate": math.inf},
        {"muon_weight_decay": -3},
        {"muon_weight_decay": math.nan},
        {"robust_threshold": math.nan},
        {"optimizer": "sgd"},
        {"schedule": "linear"},
        *({"jitter": jitter} for jitter in (-1.0, math.nan, math.inf)),
        *({"jitter": jitter, "jitter_schedule": "geometric"} for jitter in (0.0, 9e-7, math.nan)),
        {"jitter_schedule": "linear"},
        {"gradient_clip": 0.0},
    ],
)
def test_bad_runs_are_refused(arguments: dict[str, object]) -> None:
    name, value = next(iter(arguments.items()))
    with pytest.raises(ValueError, match=f"^{name} .*got {value!r}"):
        replace(RUN, **arguments)  # type: ignore[arg-type]


def test_the_cosine_falls_from_one_to_zero() -> None:
    factors = [
        TrainingConfig(num_steps=100, warmup_steps=0, schedule="cosine").rate_factor_at(s)
        for s in range(101)
    ]
    assert factors[0] == 1.0
    assert factors[50] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0.0, abs=1e-12)
    assert all(a > b for a, b in itertools.pairwise(factors))


def test_the_quadratic_falls_as_the_square_of_the_time_left() -> None:
    factors = [
        TrainingConfig(num_steps=4, warmup_steps=0, schedule="quadratic").rate_factor_at(s)
        for s in range(5)
    ]
    assert factors == pytest.approx([1.0, 9 / 16, 1 / 4, 1 / 16, 0.0], abs=1e-12)


def test_the_warmup_is_linear_and_never_zero() -> None:
    factors = [
        TrainingConfig(num_steps=100, warmup_steps=4, schedule="constant").rate_factor_at(s)
        for s in range(6)
    ]
    assert factors == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0, 1.0])


def test_the_geometric_jitter_falls_by_equal_factors_to_the_floor_and_ends() -> None:
    run = TrainingConfig(num_steps=6, jitter=1e-2, jitter_steps=4, jitter_schedule="geometric")
    jitter = [run.jitter_at(s) for s in range(6)]
    assert jitter == pytest.approx([1e-2, 1e-3, 1e-4, 1e-5, 0.0, 0.0], abs=1e-15)
    last = replace(run, jitter_steps=1000).jitter_at(999)
    assert last == pytest.approx(VARIANCE_FLOOR, rel=0.01)


def test_the_constant_jitter_stops() -> None:
    run = TrainingConfig(num_steps=4, jitter=0.3, jitter_steps=2)
    assert [run.jitter_at(s) for s in range(4)] == [0.3, 0.3, 0.0, 0.0]
    assert replace(run, jitter_steps=0).jitter_at(0) == 0.0


def test_unknown_choices_are_refused() -> None:
    bad: Any = "linear"
    with pytest.raises(ValueError, match=r"^schedule must be 'constant' or 'cosine' .*'linear'"):
        TrainingConfig(num_steps=1, schedule=bad)
    with pytest.raises(
        ValueError, match=r"^jitter_schedule must be 'constant' or 'geometric', .*'linear'"
    ):
        TrainingConfig(num_steps=1, jitter_schedule=bad)
    with pytest.raises(ValueError, match=r"^optimizer must be 'adam' or 'muon', got 'linear'"):
        TrainingConfig(num_steps=1, optimizer=bad)
