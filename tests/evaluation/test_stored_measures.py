"""The marginals and the curves that come with the library: their hashes, and some numbers again."""

from __future__ import annotations

from pathlib import Path

import pytest

from danp_lib._config import from_dict
from danp_lib._random import spawn
from danp_lib.evaluation.marginals import load_marginals, marginals_name, score_task
from danp_lib.evaluation.origin import Provenance, load_subject, results_folder
from danp_lib.evaluation.samples import load_samples, samples_name
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.danp import DANP
from danp_lib.storage.pretrained import pretrained_path
from danp_lib.storage.tasks import benchmark_path, sha256

MARGINALS = sorted(results_folder().glob("*-marginals.json"))
SAMPLES = sorted(results_folder().glob("*-samples.json"))
ROW = 129
"""Of a set, with 12 context points."""


def check_origin(result: Provenance) -> None:
    """The weights and the tasks are those that are shipped, and the commit is known."""
    origin = result.origin
    assert origin.tasks == sha256(benchmark_path(origin.dataset))
    assert origin.commit is not None
    assert "dirty" not in origin.commit
    if origin.weights is not None:
        assert origin.weights == sha256(pretrained_path(origin.name))
        subject = load_subject(origin.name, seed=0)
        config = subject.model.config
        assert from_dict(type(config), result.configuration) == config


@pytest.mark.parametrize("path", MARGINALS, ids=lambda path: path.stem)
def test_marginals_are_of_what_is_shipped_and_come_out_again(path: Path) -> None:
    result = load_marginals(path)
    check_origin(result)
    assert path.name == marginals_name(result.origin.name)
    assert result.marginals.num_tasks == 310
    record = result.marginals.tasks[ROW]
    assert record.context_size == 12
    subject = load_subject(result.origin.name, seed=result.origin.seed)
    again = score_task(
        subject.model,
        subject.tasks[ROW],
        num_samples=result.marginals.num_samples,
        generator=spawn(subject.generator, subject.tasks.batch_size)[ROW],
    )
    # Another processor rounds differently, and the network passes that on.
    assert again.context_size == record.context_size
    assert again.crps == pytest.approx(record.crps, rel=0.02, abs=1e-4)
    assert again.coverage_50 == pytest.approx(record.coverage_50, abs=0.041)  # two targets of 50
    assert again.coverage_90 == pytest.approx(record.coverage_90, abs=0.041)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_curves_are_of_what_is_shipped_and_begin_as_they_did(path: Path) -> None:
    result = load_samples(path)
    check_origin(result)
    assert path.name == samples_name(result.origin.name)
    curves = {(c.context_size, c.estimator): c for c in result.samples.curves}
    assert {size for size, _ in curves} == set(range(31))
    curve = curves[12, "both"]
    subject = load_subject(result.origin.name, seed=result.origin.seed)
    assert isinstance(subject.model, DANP)
    stream = spawn(subject.generator, subject.tasks.batch_size)[curve.row]
    again = log_likelihood(
        subject.model,
        subject.tasks[curve.row],
        estimator="both",
        num_samples=curve.num_samples[0],
        generator=spawn(stream, 2)[1],
    )
    # Another processor rounds differently, and the network passes that on.
    assert float(again.values) / 50 == pytest.approx(curve.log_likelihood[0], abs=0.05)
