"""The likelihood against the number of samples: the curves, their averages, in files."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from danp_lib._random import spawn
from danp_lib.data.points import Task
from danp_lib.evaluation import curves as evaluation_curves
from danp_lib.evaluation import origin as evaluation_origin
from danp_lib.evaluation import samples as evaluation_samples
from danp_lib.evaluation.curves import (
    SampleCurve,
    Samples,
    counts_up_to,
    sample_curves,
)
from danp_lib.evaluation.origin import Origin, Subject
from danp_lib.evaluation.samples import (
    load_samples,
    partial_name,
    run_samples,
    samples_name,
    save_samples,
)
from danp_lib.exact.oracles import GaussianProcessOracle
from danp_lib.inference.likelihood import Estimator, log_likelihood
from danp_lib.models.convnp import ConvNPConfig
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.storage.tasks import benchmark_tasks

NAME = "danp-gp"
FEW: dict[Estimator, tuple[int, ...]] = {"model": (3, 5, 9), "both": (4, 6)}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def model() -> DANP:
    base = ConvNPConfig(
        points_per_unit=16,
        channels=8,
        num_layers=2,
        rank=2,
        variance_gain=1.0,
        variance_offset=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DANP(DANPConfig(base, 2, beta=0.2, num_auxiliary=4))


@pytest.fixture(scope="module")
def tasks() -> Task:
    """Eight benchmark tasks, two each with 0, 1, 2 and 3 context points."""
    return benchmark_tasks("gp")[torch.tensor([0, 1, 10, 11, 20, 21, 30, 31])]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, model: DANP, tasks: Task) -> None:
    """A few samples of a small network on a few tasks, under the name of a trained one."""
    real = evaluation_origin.load_subject

    def load(name: str, *, seed: int, device: str = "cpu", compiled: bool = False) -> Subject:
        assert not compiled
        origin = replace(real("ceiling-gp", seed=seed).origin, name=name, weights="0" * 64)
        chosen = model if name == NAME else GaussianProcessOracle()
        return Subject(chosen, {"rank": 2}, tasks, origin, seeded(seed))

    monkeypatch.setattr(evaluation_samples, "load_subject", load)
    monkeypatch.setattr(evaluation_curves, "NUM_SAMPLES", FEW)


def timeless(curves: tuple[SampleCurve, ...]) -> list[SampleCurve]:
    return [replace(curve, seconds=0.0) for curve in curves]


def test_a_curve_holds_the_estimate_of_every_number_of_samples(model: DANP, tasks: Task) -> None:
    task = tasks[4]
    curves = sample_curves(model, task, row=7, generator=seeded(3), chunk_size=4)
    streams = (spawn(seeded(3), 2) for _ in range(10))
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
        sample_curves(model, tasks[0], max_samples=most, generator=seeded(1)) for most in (None, 5)
    )
    assert [len(curve.num_samples) for curve in part] == [2, 1]
    for long, short in zip(whole, part, strict=True):
        n = len(short.num_samples)
        assert short.log_likelihood == pytest.approx(long.log_likelihood[:n])
    with pytest.raises(ValueError, match=r"^max_samples .*4.*3"):
        sample_curves(model, tasks[0], max_samples=3, generator=seeded(1))


def test_the_averages_are_over_the_tasks_and_each_context_size() -> None:
    def curve(row: int, size: int, estimator: Estimator, *logs: float) -> SampleCurve:
        counts = (10, 20)[: len(logs)]
        return SampleCurve(row, size, estimator, counts, logs, (1.0,) * len(logs), 1, 1.0)

    curves = (
        curve(0, 0, "model", 0.0, 1.0),
        curve(0, 0, "both", 2.0),
        curve(5, 3, "model", -1.0, 3.0),
    )
    result = Samples.summarize(curves)
    first, second = result.select("model")
    assert (first.num_samples, first.num_tasks, first.context_size) == (10, 2, None)
    assert first.average_likelihood == pytest.approx((1 + math.exp(-1)) / 2)
    spread = (1 - math.exp(-1)) / math.sqrt(2)  # the standard deviation of two numbers
    assert first.average_likelihood_ci95 == pytest.approx(1.96 * spread / math.sqrt(2))
    assert first.mean_log_likelihood == -0.5
    assert second.average_likelihood == pytest.approx((math.exp(1) + math.exp(3)) / 2)
    (alone,) = result.select("both")
    assert alone.average_likelihood == pytest.approx(math.exp(2))
    assert alone.average_likelihood_ci95 is None
    at_three = result.select("model", context_size=3)
    assert [a.num_samples for a in at_three] == [10, 20]
    assert [a.mean_log_likelihood for a in at_three] == [-1.0, 3.0]
    assert result.select("both", context_size=3) == ()


def test_a_run_takes_the_first_tasks_of_each_size(tmp_path: Path) -> None:
    one = run_samples(NAME, tmp_path / "one", seed=4).samples
    assert [curve.row for curve in one.curves] == [0, 0, 2, 2, 4, 4, 6, 6]
    assert [curve.context_size for curve in one.curves[::2]] == [0, 1, 2, 3]
    both = run_samples(NAME, tmp_path / "both", seed=4, tasks_per_size=2).samples
    assert len(both.curves) == 16
    # A task's samples do not depend on which others are taken.
    shared = [curve for curve in timeless(both.curves) if curve.row % 2 == 0]
    assert shared == timeless(one.curves)
    with pytest.raises(ValueError, match=r"^tasks_per_size .*3"):
        run_samples(NAME, tmp_path, tasks_per_size=3)


def test_an_interrupted_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_samples(NAME, tmp_path / "whole")
    done: list[int] = []
    real = sample_curves

    def counting(*args: Any, row: int, **options: Any) -> tuple[SampleCurve, ...]:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(row)
        return real(*args, row=row, **options)

    monkeypatch.setattr(evaluation_samples, "sample_curves", counting)
    with pytest.raises(KeyboardInterrupt):
        run_samples(NAME, tmp_path)
    kept = load_samples(tmp_path / partial_name(NAME))
    assert [curve.row for curve in kept.samples.curves] == [0, 0, 2, 2]
    done.clear()
    with pytest.raises(KeyboardInterrupt):
        run_samples(NAME, tmp_path, tasks_per_size=2)
    assert done == [1, 3]  # 0 and 2 are there
    done.clear()
    result = run_samples(NAME, tmp_path)
    assert done == [4, 6]
    assert timeless(result.samples.curves) == timeless(whole.samples.curves)
    path = save_samples(tmp_path, result)
    assert path == tmp_path / "danp-gp-samples.json"
    assert not (tmp_path / partial_name(NAME)).exists()


def test_a_task_with_fewer_samples_is_done_again(tmp_path: Path) -> None:
    short = run_samples(NAME, tmp_path, max_samples=5)
    assert {curve.num_samples for curve in short.samples.curves} == {(3, 5), (4,)}
    whole = run_samples(NAME, tmp_path)
    assert {curve.num_samples for curve in whole.samples.curves} == set(FEW.values())


def test_what_is_kept_of_another_seed_is_refused(tmp_path: Path) -> None:
    run_samples(NAME, tmp_path, seed=1)
    with pytest.raises(ValueError, match=r"seed 2 .* 1"):
        run_samples(NAME, tmp_path, seed=2)


def test_only_a_danp_draws_samples(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^name .*'ceiling-gp'"):
        run_samples("ceiling-gp", tmp_path)


def test_a_result_round_trips_with_its_origin(tmp_path: Path) -> None:
    result = run_samples(NAME, tmp_path, tasks_per_size=2, seed=6)
    path = save_samples(tmp_path, result)
    assert path.name == samples_name(NAME)
    assert load_samples(path) == result
    origin: Origin = result.origin
    assert (origin.name, origin.dataset, origin.seed) == (NAME, "gp", 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["overall"][0].update(average_likelihood=9.0), "average_likelihood .*9"),
        (lambda s: s["overall"].pop(), "overall .*5.*4"),
        (lambda s: s["by_context_size"][3].update(num_tasks=2), "num_tasks .*2"),
        (lambda s: s["curves"][0]["log_likelihood"].pop(), "log_likelihood .*3"),
        (lambda s: s["curves"][0].update(estimator="noise"), r"curves\[0\]\.estimator"),
        (lambda s: s.pop("curves"), "samples.curves"),
    ],
)
def test_a_changed_result_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = save_samples(tmp_path, run_samples(NAME, tmp_path))
    content = json.loads(path.read_text())
    change(content["samples"])
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message) as caught:
        load_samples(path)
    assert str(path) in str(caught.value)
