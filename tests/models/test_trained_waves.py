"""Invariant 12: on waves, which lie in [0, 1], no trained DANP predicts what no wave is near."""

from __future__ import annotations

import pytest
import torch

from danp_lib.data.generators import split_name
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.storage.pretrained import PRETRAINED, load_pretrained
from danp_lib.storage.tasks import benchmark_tasks

WAVES = [
    name
    for name in PRETRAINED
    if name.startswith("danp") and split_name(name)[1] in ("sawtooth", "square", "square-released")
]

WIDEST = {"danp-square-released-paper": 1.5}
"""The largest standard deviation of the models that do not keep the limit of all others."""


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
