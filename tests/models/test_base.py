"""What every model inherits, by models that have nothing of this library's network."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts import PredictiveContract, assert_same, draw_set
from randomness import rng
from torch import Tensor, nn

from danp_lib._config import Configuration, PositiveInt
from danp_lib.data.domain import Bounds, Domain
from danp_lib.data.generators import GaussianProcess, Sawtooth
from danp_lib.data.noising import MaskedTask
from danp_lib.data.points import PointSet, Task
from danp_lib.data.scaling import Scaling
from danp_lib.distributions.gaussian import DiagonalNormal, LowRankNormal
from danp_lib.distributions.mixture import Mixture
from danp_lib.evaluation.marginals import score_marginals
from danp_lib.evaluation.score import evaluate
from danp_lib.fitting.fitted import Fitted
from danp_lib.inference.autoregressive import ar_log_prob, ar_sample
from danp_lib.inference.compiling import compile_unet
from danp_lib.inference.likelihood import log_likelihood
from danp_lib.models.base import NeuralProcess, Predictive
from danp_lib.models.contexts import ContextWarning, TrainingContexts, log_density_per_point
from danp_lib.models.registry import MODELS
from danp_lib.storage.checkpoint import load_checkpoint, save_checkpoint
from danp_lib.training.config import TrainingConfig
from danp_lib.training.loop import train
from danp_lib.training.objective import BatchConfig


@dataclass(frozen=True)
class DeepSetConfig(Configuration):
    """A conditional neural process (Garnelo et al., 2018)."""

    domain: Bounds = (-2.0, 2.0)
    channels: PositiveInt = 8


class DeepSet(NeuralProcess):
    name = "deep-set"

    def __init__(self, config: DeepSetConfig = DeepSetConfig()) -> None:
        super().__init__()
        self.config: DeepSetConfig = config
        self.encoder = nn.Sequential(
            nn.Linear(2, config.channels), nn.GELU(), nn.Linear(config.channels, config.channels)
        )
        self.decoder = nn.Sequential(
            nn.Linear(config.channels + 1, config.channels),
            nn.GELU(),
            nn.Linear(config.channels, 2),
        )

    @property
    def domain(self) -> Domain:
        return Domain.of(self.config.domain)

    def represent(self, context: PointSet) -> Tensor:
        real = context.blanked()
        pairs = torch.cat([real.x - self.domain.lower[0], real.y], dim=-1)
        return (self.encoder(pairs) * real.mask.unsqueeze(-1)).sum(dim=1, keepdim=True)

    def decode(self, r: Tensor, xt: Tensor) -> DiagonalNormal:
        batch = max(len(r), len(xt))
        r, x = r.expand(batch, xt.shape[1], -1), xt.expand(batch, -1, -1) - self.domain.lower[0]
        mean, raw = self.decoder(torch.cat([x, r], dim=-1)).split(1, dim=-1)
        return DiagonalNormal(mean, 1e-4 + nn.functional.softplus(raw))

    def level_predictive(self, batch: MaskedTask) -> LowRankNormal:
        return self.decode(self.represent(batch.context), batch.target.x)

    @torch.no_grad()
    def context_log_density(self, context: PointSet) -> Tensor:
        own = self.decode(self.represent(context), context.blanked().x)
        return log_density_per_point(own, context)

    @torch.no_grad()
    def predict(
        self,
        context: PointSet,
        xt: Tensor,
        *,
        num_samples: int = 256,
        generator: torch.Generator | None = None,
        chunk_size: int = 256,
    ) -> Predictive:
        self.check({"context": context}, xt=xt)
        self.check_context(context)
        return self.decode(self.represent(context), xt)


class Latent(DeepSet):
    """A latent neural process: the representation has noise, S draws of it."""

    name = "latent"
    is_sampled = True

    @torch.no_grad()
    def predict(
        self,
        context: PointSet,
        xt: Tensor,
        *,
        num_samples: int = 256,
        generator: torch.Generator | None = None,
        chunk_size: int = 256,
    ) -> Mixture:
        self.check({"context": context}, xt=xt)
        r = self.represent(context)
        each: list[Any] = []
        for _ in range(num_samples):
            assert generator is not None
            eps = torch.randn(r.shape, dtype=r.dtype, generator=generator)
            each.append(self.decode(r + eps, xt).map(lambda part: part.unsqueeze(1)))
        parts = LowRankNormal.cat(each, dim=1)
        return Mixture(torch.zeros(parts.batch_shape), parts)


class TwoValued(DeepSet):
    """A mixture in closed form: an output is near 0 or near 1."""

    name = "two-valued"

    @torch.no_grad()
    def predict(
        self,
        context: PointSet,
        xt: Tensor,
        *,
        num_samples: int = 256,
        generator: torch.Generator | None = None,
        chunk_size: int = 256,
    ) -> Mixture:
        y = torch.tensor([0.0, 1.0]).reshape(1, 2, 1, 1).expand(len(xt), 2, xt.shape[1], 1)
        parts = LowRankNormal(y, y[..., :0], torch.full_like(y, 1e-4))
        return Mixture(torch.tensor([0.3, 0.7]).log().expand(len(xt), 2), parts)


def built(kind: type[DeepSet], dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(DeepSetConfig(**changes)).to(dtype)


def some_tasks(count: int = 3) -> Task:
    return Sawtooth().sample_task(count, context_size=5, num_targets=4, generator=rng())


class TestDeepSet(PredictiveContract):
    def build(self, domain: tuple[float, float] = (-2.0, 2.0)) -> nn.Module:
        return built(DeepSet, torch.float64, domain=domain)


def test_a_model_without_a_grid_is_trained_stored_scored_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "deep-set", DeepSet)
    model, prior = built(DeepSet), GaussianProcess()
    run = TrainingConfig(num_steps=4, batch=BatchConfig(batch_size=2), num_validation_batches=1)
    train(model, prior, run, folder=tmp_path / "run", progress=False)
    model.training_contexts = TrainingContexts.measure(model, prior, (0, 30), per_range=4)
    save_checkpoint(tmp_path / "m.safetensors", model, task_generator=prior)
    loaded = load_checkpoint(tmp_path / "m.safetensors")
    assert isinstance(loaded, DeepSet)
    assert (loaded.num_levels, loaded.grid_spacing) == (0, 0.0)

    task = some_tasks()
    exact = loaded.predict(task.context, task.xt)
    found = log_likelihood(loaded, task)
    assert (found.estimator, found.num_samples) == ("exact", 1)
    torch.testing.assert_close(found.values, exact.log_prob(task.yt))
    assert evaluate(loaded, task, num_samples=2, generator=rng()).num_tasks == 3
    assert_same(loaded.condition_on(task.context)(task.xt), exact)
    fitted = Fitted(loaded, Scaling(x_offset=10.0, x_unit=1.0, y_offset=0.0, y_unit=2.0))
    own = fitted.predict(PointSet(task.xc + 10.0, 2.0 * task.yc), task.xt + 10.0)
    torch.testing.assert_close(own.mean, 2.0 * exact.mean, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="model must be a ConvNeuralProcess, got DeepSet"):
        compile_unet(loaded, batch_size=2)  # type: ignore[arg-type]


def test_inputs_that_float32_cannot_tell_apart_are_refused_without_a_grid_too() -> None:
    scaling = Scaling(x_offset=1.7e9, x_unit=10.0, y_offset=0.0, y_unit=1.0)
    fitted, xt = Fitted(built(DeepSet), scaling), torch.tensor([1.7e9, 1.7e9 + 7]).reshape(1, 2, 1)
    with pytest.raises(ValueError, match=r"^x must be in float64"):
        fitted.predict(PointSet.empty(dtype=torch.float64), xt)


def test_a_context_unlike_those_of_training_is_told() -> None:
    model, context, xt = built(DeepSet), draw_set(1, 5, 0).to(torch.float32), torch.zeros(1, 1, 1)
    model.training_contexts = TrainingContexts.measure(model, Sawtooth(), (0, 30), per_range=4)
    with pytest.warns(ContextWarning, match="off the scale of training"):
        model.predict(PointSet(context.x, context.y + 100.0), xt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ar_sample(model, context, xt, num_samples=2, generator=rng())


@pytest.mark.parametrize("kind", [DeepSet, Latent, TwoValued])
def test_samples_of_a_rollout_come_from_what_the_model_predicts(kind: type[DeepSet]) -> None:
    model, task = built(kind), some_tasks(1)
    x = task.xt[:, :1]
    samples = ar_sample(model, task.context, x, num_samples=4000, generator=rng(1)).values
    predictive = model.predict(task.context, x, num_samples=4000, generator=rng(2))
    for level in (0.1, 0.5, 0.9):
        below = (samples.double() <= predictive.quantile(level)).double().mean()
        # Four standard errors of either side.
        assert float(below) == pytest.approx(level, abs=4 * math.sqrt(2 * 0.25 / 4000))
    assert float(samples.var()) == pytest.approx(float(predictive.variance), rel=0.1)


def test_a_mixture_in_closed_form_is_no_sample() -> None:
    model, task = built(TwoValued), some_tasks()
    found = log_likelihood(model, task)
    torch.testing.assert_close(found.values, model.predict(task.context, task.xt).log_prob(task.yt))
    assert (found.estimator, found.num_samples, found.forward_passes) == ("exact", 1, 3)
    assert found.effective_sample_size.tolist() == [1.0, 1.0, 1.0]


class TestLatent:
    def test_the_likelihood_is_that_of_its_mixture(self) -> None:
        model, task = built(Latent), some_tasks()
        found = log_likelihood(model, task, num_samples=7, generator=rng(3))
        mixture = model.predict(task.context, task.xt, num_samples=7, generator=rng(3))
        torch.testing.assert_close(found.values, mixture.log_prob(task.yt))
        assert (found.estimator, found.num_samples, found.forward_passes) == ("model", 7, 21)
        assert ((found.effective_sample_size > 1.0) & (found.effective_sample_size < 7.0)).all()

    def test_one_sample_is_a_sample(self) -> None:
        found = log_likelihood(built(Latent), some_tasks(), num_samples=1, generator=rng(3))
        assert (found.estimator, found.num_samples) == ("model", 1)

    def test_a_rollout_says_how_many_samples_it_had(self) -> None:
        model, task = built(Latent), some_tasks()
        options: Any = {"num_samples": 7, "generator": rng(3)}
        found = log_likelihood(model, task, estimator="autoregressive", **options)
        assert found.num_samples == 7
        assert found.effective_sample_size.isnan().all()

    def test_scores_of_its_marginals_come_out_again(self) -> None:
        model, task = built(Latent), some_tasks()
        one, again = (score_marginals(model, task, num_samples=5, generator=rng(1)) for _ in "ab")
        assert one.num_samples == 5
        assert [task.crps for task in one.tasks] == [task.crps for task in again.tasks]

    def test_it_needs_a_generator(self) -> None:
        model, task = built(Latent), some_tasks()
        with pytest.raises(
            ValueError, match=r"^generator must be a torch\.Generator, which samples"
        ):
            log_likelihood(model, task)
        with pytest.raises(ValueError, match=r"^generator must be a Generator, got NoneType"):
            model.condition_on(task.context)

    def test_a_rollout_gives_each_target_the_samples_asked_for(self) -> None:
        model, task = built(Latent), some_tasks(1)
        few, many = (
            ar_log_prob(model, task, num_samples=count, generator=rng(4)).values
            for count in (1, 300)
        )
        assert not torch.equal(few, many)

    def test_conditioned_once_it_keeps_its_samples(self) -> None:
        model, task, generator = built(Latent), some_tasks(), rng(5)
        options: Any = {"num_samples": 3, "generator": generator}
        predict = model.condition_on(task.context, **options)
        later = model.condition_on(task.context, **options)(task.xt)
        with pytest.raises(ValueError, match=r"^xt "):
            predict(task.xt + 100.0)
        first = predict(task.xt)
        assert_same(first, model.predict(task.context, task.xt, num_samples=3, generator=rng(5)))
        assert_same(predict(task.xt[:, 1:]), first.marginal(slice(1, None)), 1e-6)
        assert not torch.allclose(later.mean, first.mean)
