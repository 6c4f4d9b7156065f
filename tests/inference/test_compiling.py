"""A compiled network predicts what it did before."""

from __future__ import annotations

import pytest
import torch
from small_models import seeded, small_config

from danp_lib.data.generators import Sawtooth
from danp_lib.inference.compiling import can_compile, compile_unet
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.danp import DANP, DANPConfig


def test_without_a_compiler_or_a_cpu_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not can_compile("cpu")
    monkeypatch.setenv("CXX", "sh")
    assert can_compile("cpu")
    assert not can_compile(torch.device("cuda"))


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.skipif(not can_compile("cpu"), reason="there is no C++ compiler")
def test_a_compiled_network_predicts_the_same() -> None:
    config = DANPConfig(base=small_config(rank=4), num_levels=1, num_auxiliary=10)
    model = seeded(DANP, config, dtype=torch.float32).eval()
    task = Sawtooth().sample_task(
        1, context_size=5, num_targets=10, generator=torch.Generator().manual_seed(0)
    )

    def estimate(chunk_size: int) -> float:
        generator = torch.Generator().manual_seed(1)
        return float(
            log_likelihood(
                model, task, num_samples=32, chunk_size=chunk_size, generator=generator
            ).values
        )

    before = estimate(16)
    compile_unet(model, batch_size=16)
    assert estimate(16) == pytest.approx(before, abs=1e-3)
    # Its weights are constants by now, and batches of other sizes still pass through the model's.
    unet = model.core.unet
    x = torch.ones(16, 4, len(model.core.grid))
    with torch.no_grad():
        passed, eager = unet(x), unet(x[:8])
        torch.testing.assert_close(passed[:8], eager, rtol=0, atol=1e-5)
        next(iter(unet.parameters())).zero_()
        torch.testing.assert_close(unet(x), passed, rtol=0, atol=0)
        assert (unet(x[:8]) - eager).abs().max() > 1e-3
