"""The orders that rollouts are compared in, and the stored log-densities."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from randomness import rng

from danp_lib.data.generators import Sawtooth
from danp_lib.inference import autoregressive
from danp_lib.inference.autoregressive import ar_log_prob
from danp_lib.storage.origin import sha256
from danp_lib.storage.pretrained import load_pretrained, pretrained_path

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("rollout_orders")


def test_each_order_takes_the_target_that_its_name_says(benchmark: Any) -> None:
    xt = torch.tensor([[0.9], [-1.0], [0.0], [1.5], [0.3]])
    nothing, known = xt[:0], torch.tensor([[0.2], [1.9]])
    assert benchmark.left_to_right(xt, nothing, rng(0)).tolist() == [1, 2, 4, 0, 3]
    # 0.3 is 0.1 away, 0.0 is 0.2 away, 1.5 is 0.4, then 0.9 is 0.6 from 0.3 and from 1.5.
    assert benchmark.nearest_known(xt, known, rng(0)).tolist() == [4, 2, 3, 0, 1]
    for kind, order in benchmark.KINDS.items():
        for context in (nothing, known):
            orders = [order(xt, context, rng(seed)).tolist() for seed in range(20)]
            assert all(sorted(o) == [0, 1, 2, 3, 4] for o in orders)
            same = kind == "left to right" or (kind == "nearest known" and len(context) > 0)
            assert (len({tuple(o) for o in orders}) == 1) is same
    for seed in range(20):
        first, second, *_ = benchmark.farthest_known(xt, nothing, rng(seed)).tolist()
        gaps = (xt[:, 0] - xt[first, 0]).abs()
        assert int(gaps.argmax()) == second


def test_an_order_scores_as_the_librarys_rollout_in_it(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_pretrained(benchmark.NAMES[0])
    task = Sawtooth().sample_task(1, context_size=3, generator=rng(1))
    for kind, order in benchmark.KINDS.items():
        found = benchmark.log_densities(model, task, kind, num_orders=3, seed=5)
        first = order(task.xt[0], task.context.x[0], rng(5))
        monkeypatch.setattr(autoregressive, "draw_order", lambda *_, first=first, **__: first)
        expected = ar_log_prob(model, task, generator=rng(0)).values / task.target.num_points
        assert (len(found), len(set(found)) == 1) == (3, kind in ("left to right", "nearest known"))
        assert found[0] == pytest.approx(float(expected), abs=1e-4)


def test_the_stored_densities_are_of_the_models_that_are_shipped(benchmark: Any) -> None:
    stored = json.loads((ROOT / "results" / "orders-compared.json").read_text(encoding="utf-8"))
    assert stored["weights"] == {n: sha256(pretrained_path(n)) for n in benchmark.NAMES}
    assert "dirty" not in stored["origin"]["commit"]
    assert stored["context_sizes"] == list(benchmark.SIZES)
    tasks = benchmark.tasks()
    for logs in stored["log_densities"].values():
        assert list(logs) == list(benchmark.KINDS)
        for values in logs.values():
            assert torch.tensor(values).shape == (len(tasks), benchmark.NUM_ORDERS)
    many = torch.tensor(stored["in_many_outward_orders"])
    assert many.shape == (len(tasks), benchmark.MANY)
    few = torch.tensor(stored["log_densities"][benchmark.LONGEST]["outward"])
    assert torch.equal(many[:, : benchmark.NUM_ORDERS], few)
    # A task again, in the first order of each kind.
    name, row = benchmark.NAMES[0], 40
    model = load_pretrained(name)
    for kind, logs in stored["log_densities"][name].items():
        again = benchmark.log_densities(
            model, tasks[row], kind, num_orders=1, seed=stored["seed"] + row
        )
        # Another processor rounds differently, and the network passes that on.
        assert again == pytest.approx(logs[row][:1], abs=0.02)
