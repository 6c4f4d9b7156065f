"""A DANP as it is used: its scores are those of the mixture that it predicts."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
from randomness import rng
from small_models import scored_danp

from danp_lib._random import spawn
from danp_lib.data.generators import Sawtooth
from danp_lib.distributions.scores import crps, in_central_interval
from danp_lib.evaluation.marginals import Marginals, score_marginals
from danp_lib.evaluation.used import score_used
from danp_lib.models.contexts import ContextWarning, SizeRange, TrainingContexts

TASKS = Sawtooth().sample_task(3, context_size=4, num_targets=5, generator=rng())


def test_the_scores_are_those_of_the_defended_mixture() -> None:
    model = scored_danp()
    used = score_used(model, TASKS, num_samples=6, generator=rng(3))
    assert used.defensive_weight == 0.05
    assert (used.evaluation.estimator, used.evaluation.num_samples) == ("model", 6)
    assert used.evaluation.forward_passes == 3 * (2 + 2 * 6)
    streams = spawn(rng(3), 3)
    for row, (record, marginal) in enumerate(
        zip(used.evaluation.tasks, used.marginals.tasks, strict=True)
    ):
        task = TASKS[row]
        mixture = model.defended(0.05).predict(
            task.context, task.xt, num_samples=6, generator=streams[row]
        )
        y = task.yt.double()
        assert record.log_likelihood == float(mixture.log_prob(y)) / 5
        assert marginal.crps == float(crps(mixture, y).mean())
        assert marginal.coverage_90 == float(in_central_interval(mixture, y, 0.9).double().mean())
    # With the same samples, undefended marginals differ.
    plain = score_marginals(model, TASKS, num_samples=6, generator=rng(3))
    assert plain.crps != used.marginals.crps


def test_a_weight_of_the_models_own_is_kept() -> None:
    own = scored_danp().defended(0.2)
    assert score_used(own, TASKS[:1], num_samples=2, generator=rng(3)).defensive_weight == 0.2


def test_without_levels_there_is_nothing_to_score() -> None:
    with pytest.raises(ValueError, match=r"^model must have noise levels"):
        score_used(scored_danp(num_levels=0), TASKS, generator=rng(3))


def test_likelihoods_and_marginals_of_other_tasks_are_refused() -> None:
    used = score_used(scored_danp(), TASKS, num_samples=2, generator=rng(3))
    fewer = Marginals.summarize(used.marginals.tasks[:2], num_samples=2)
    with pytest.raises(ValueError, match=r"^evaluation and marginals must be .* got 3 and 2"):
        replace(used, marginals=fewer)


def test_contexts_are_not_looked_at() -> None:
    model = scored_danp()
    model.training_contexts = TrainingContexts((0.4, 0.41), (SizeRange(1, 9.0, 9.0),), 0.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        score_used(model, TASKS, num_samples=2, generator=rng(3))
        assert caught == []
        model.predict(TASKS.context, TASKS.xt, num_samples=2, generator=rng(3))
    assert [warning.category for warning in caught] == [ContextWarning]
