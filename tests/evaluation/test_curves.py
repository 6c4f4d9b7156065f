"""The likelihood against the number of samples: curves, and their averages."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from randomness import rng
from small_models import scored_danp

from danp_lib._random import spawn
from danp_lib.data.points import PointSet, Task
from danp_lib.evaluation import curves as evaluation_curves
from danp_lib.evaluation.curves import (
    SampleCurve,
    Samples,
    counts_up_to,
    sample_curves,
    score_samples,
)
from danp_lib.exact.oracles import GaussianProcessOracle
from danp_lib.inference.likelihood import Estimator, log_likelihood
from danp_lib.models.danp import DANP

FEW: dict[Estimator, tuple[int, ...]] = {"model": (3, 5, 9), "both": (4, 6)}


@pytest.fixture(scope="module")
def model() -> DANP:
    return scored_danp()


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small numbers of samples."""
    monkeypatch.setattr(evaluation_curves, "NUM_SAMPLES", FEW)


def timeless(curves: tuple[SampleCurve, ...]) -> list[SampleCurve]:
    return [replace(curve, seconds=0.0) for curve in curves]


def test_a_curve_holds_the_estimate_of_every_number_of_samples(model: DANP, tasks: Task) -> None:
    task = tasks[4]
    curves = sample_curves(model, task, FEW, row=7, generator=rng(3))
    streams = (spawn(rng(3), 2) for _ in range(10))
    for curve, (stream, (estimator, counts)) in zip(curves, enumerate(FEW.items()), strict=True):
        assert (curve.row, curve.context_size, curve.estimator) == (7, 2, estimator)
        assert curve.num_samples == counts
        assert curve.forward_passes == 1 + 2 * counts[-1]
        for place, count in enumerate(counts):
            expected = log_likelihood(
                model,
                task,
                estimator=estimator,
                num_samples=count,
                generator=next(streams)[stream],
            )
            assert curve.log_likelihood[place] == pytest.approx(float(expected.values) / 50)
            assert curve.effective_sample_size[place] == pytest.approx(
                float(expected.effective_sample_size)
            )


def test_larger_numbers_of_samples_can_be_left_out(model: DANP, tasks: Task) -> None:
    assert counts_up_to(5) == {"model": (3, 5), "both": (4,)}
    assert counts_up_to(None) == FEW
    whole, part = (
        sample_curves(model, tasks[0], counts_up_to(most), row=0, generator=rng(1))
        for most in (None, 5)
    )
    assert [len(curve.num_samples) for curve in part] == [2, 1]
    for long, short in zip(whole, part, strict=True):
        n = len(short.num_samples)
        assert short.log_likelihood == pytest.approx(long.log_likelihood[:n])
    with pytest.raises(ValueError, match=r"^max_samples .*4.*3"):
        score_samples(model, tasks, max_samples=3, generator=rng(1))


def test_the_curves_are_of_the_first_tasks_of_each_size(model: DANP, tasks: Task) -> None:
    one = score_samples(model, tasks, generator=rng(4))
    assert [curve.row for curve in one.curves] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert [curve.context_size for curve in one.curves[::2]] == [0, 1, 2, 3]
    both = score_samples(model, tasks, tasks_per_size=2, generator=rng(4))
    assert len(both.curves) == 16
    # A task's samples do not depend on which others are taken.
    shared = [curve for curve in timeless(both.curves) if curve.row % 2 == 0]
    assert shared == timeless(one.curves)
    with pytest.raises(ValueError, match=r"^tasks_per_size .*3"):
        score_samples(model, tasks, tasks_per_size=3, generator=rng(4))


def test_what_is_done_is_not_done_again(model: DANP, tasks: Task) -> None:
    kept: list[Samples] = []
    whole = score_samples(model, tasks, generator=rng(5), keep=kept.append)
    assert [len(samples.curves) for samples in kept] == [2, 4, 6, 8]
    assert kept[-1] == whole
    # Marked, since only curves that were not computed again keep the mark.
    marked = [replace(curve, seconds=-1.0) for curve in kept[1].curves]
    again = score_samples(model, tasks, generator=rng(5), done=marked)
    assert [curve.seconds < 0.0 for curve in again.curves] == 4 * [True] + 4 * [False]
    assert timeless(again.curves) == timeless(whole.curves)
    # Curves with fewer samples are not complete.
    short = score_samples(model, tasks, max_samples=5, generator=rng(5))
    assert {curve.num_samples for curve in short.curves} == {(3, 5), (4,)}
    longer = score_samples(model, tasks, generator=rng(5), done=short.curves)
    assert timeless(longer.curves) == timeless(whole.curves)


def test_only_a_danp_draws_samples(tasks: Task) -> None:
    with pytest.raises(ValueError, match=r"^model .*GaussianProcessOracle"):
        score_samples(GaussianProcessOracle(), tasks, generator=rng(0))  # type: ignore[arg-type]


def test_a_danp_without_levels_and_a_batch_without_tasks_are_refused(
    model: DANP, tasks: Task
) -> None:
    without = DANP(replace(model.config, num_levels=0))
    with pytest.raises(ValueError, match=r"^model must .*num_levels >= 1, got a DANP with 0"):
        score_samples(without, tasks, generator=rng(0))
    with pytest.raises(ValueError, match=r"^task must hold at least one task and .*, got 0 and "):
        score_samples(model, tasks[:0], generator=rng(0))
    nothing = Task(tasks.context, PointSet(tasks.xt[:, :0], tasks.yt[:, :0]), tasks.pool)
    with pytest.raises(ValueError, match=r"^task must hold .* one target, got \d+ and 0\.$"):
        score_samples(model, nothing, generator=rng(0))


@pytest.mark.parametrize("count", [0, 1.0, 99])
def test_a_number_of_tasks_that_there_is_not_is_refused(
    count: Any, model: DANP, tasks: Task
) -> None:
    with pytest.raises(ValueError, match=r"^tasks_per_size must "):
        score_samples(model, tasks, tasks_per_size=count, generator=rng(0))


def test_a_model_that_weights_its_samples_has_no_curve(model: DANP, tasks: Task) -> None:
    weighting = copy.copy(model)
    base = replace(model.config.base, conditioned=True, observation_noise=0.01, largest_noise=0.3)
    weighting.config = replace(model.config, base=base)
    with pytest.raises(ValueError, match=r"weight its samples by the context.*largest_noise=0\.3"):
        score_samples(weighting, tasks, generator=rng(0))


def test_a_curve_has_one_estimate_for_each_number_of_samples() -> None:
    with pytest.raises(ValueError, match=r"effective_sample_size .*2 .*1"):
        SampleCurve(0, 0, "model", (1, 2), (0.0, 0.0), (1.0,), 1, 1.0)
