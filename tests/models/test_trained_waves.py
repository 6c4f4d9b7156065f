"""Invariant 12: on waves, which lie in [0, 1], no trained model predicts what no wave is near."""

from __future__ import annotations

import pytest
import torch

from danp_lib.data.generators import split_name
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.storage.pretrained import PRETRAINED, load_pretrained
from danp_lib.storage.tasks import benchmark_tasks

ALL = [n for n in PRETRAINED if split_name(n)[1] in ("sawtooth", "square", "square-released")]
WAVES = [name for name in ALL if name.startswith("danp")]
ONE_PASS = [name for name in ALL if name not in WAVES]
WIDEST = {
    "danp-square-released-paper": 1.5,
    "convcnp-sawtooth-paper": 0.9,
    "ar-convcnp-sawtooth-paper": 0.9,
    "ar-convcnp-square-released-paper": 1.8,
}
"""The largest standard deviation of the models that do not keep the limit of all others; all of
them are trained by the paper's recipe.
"""


@pytest.mark.parametrize("name", WAVES)
def test_no_component_leaves_the_range_of_waves(name: str) -> None:
    model = load_pretrained(name)
    tasks = benchmark_tasks(split_name(name)[1])
    for row in range(0, tasks.batch_size, 40):
        task = tasks[row]
        generator = torch.Generator().manual_seed(row)
        # A few of many contexts of the prior are warned of, too.
        with unchecked_contexts():
            predictive = model.predict(task.context, task.xt, num_samples=32, generator=generator)
        means = predictive.components.mean
        assert means.min() >= -0.5
        assert means.max() <= 1.5
        assert predictive.stddev.max() <= WIDEST.get(name, 0.75)


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in WAVES if not name.endswith("-paper")])
def test_of_a_defended_danp_no_component_leaves_it_on_any_task(name: str) -> None:
    model = load_pretrained(name).defended()
    tasks = benchmark_tasks(split_name(name)[1])
    generator = torch.Generator().manual_seed(7)
    with unchecked_contexts():
        predictive = model.predict(tasks.context, tasks.xt, num_samples=4, generator=generator)
    means = predictive.components.mean
    assert means.min() >= -0.5
    assert means.max() <= 1.5
    # Four samples may differ more than those that are used.
    for row in (predictive.stddev.amax(dim=(1, 2)) > 0.75).nonzero().flatten().tolist():
        task = tasks[row]
        with unchecked_contexts():
            used = model.predict(task.context, task.xt, num_samples=256, generator=generator)
        assert used.stddev.max() <= 0.75


@pytest.mark.parametrize("name", ONE_PASS)
def test_nor_does_the_mean_of_a_model_of_one_pass(name: str) -> None:
    tasks = benchmark_tasks(split_name(name)[1])
    with unchecked_contexts():
        predictive = load_pretrained(name).predict(tasks.context, tasks.xt)
    assert predictive.mean.min() >= -0.5
    assert predictive.mean.max() <= 1.5
    assert predictive.stddev.max() <= WIDEST.get(name, 0.75)
