"""Batches, the likelihood that training maximizes, and what is said when it fails."""

import math
from dataclasses import replace
from functools import partial
from typing import Literal

import pytest
import torch
from randomness import rng
from small_models import TINY

from danp_lib.data.generators import Sawtooth
from danp_lib.data.noising import sample_augmented_task
from danp_lib.distributions.gaussian import LowRankNormal
from danp_lib.models.convnp import ConvGNP
from danp_lib.models.danp import DANP, DANPConfig
from danp_lib.training.objective import (
    BatchConfig,
    batch_log_likelihood,
    cause_of_failure,
    draw_batch,
    draw_levels,
    training_loss,
    validation_log_likelihoods,
)
from danp_lib.training.recipes import build_model


def tiny_danp(num_levels: int = 2) -> DANP:
    model = build_model("danp", DANPConfig(base=TINY, num_levels=num_levels), seed=0)
    assert isinstance(model, DANP)
    return model


def test_levels_are_one_a_batch_and_uniform() -> None:
    g, config = rng(), BatchConfig(batch_size=4)
    draws = torch.stack([draw_levels(3, config, generator=g) for _ in range(4000)])
    assert (draws == draws[:, :1]).all()
    shares = draws[:, 0].bincount(minlength=4) / 4000
    assert shares.tolist() == pytest.approx([0.25] * 4, abs=4 * (0.25 * 0.75 / 4000) ** 0.5)


def test_the_clean_fraction_is_the_share_of_level_zero_and_the_rest_is_even() -> None:
    g, config = rng(), BatchConfig(batch_size=1, clean_fraction=0.5)
    draws = torch.cat([draw_levels(2, config, generator=g) for _ in range(4000)])
    shares = draws.bincount(minlength=3) / 4000
    assert shares.tolist() == pytest.approx([0.5, 0.25, 0.25], abs=4 * (0.25 / 4000) ** 0.5)


@pytest.mark.parametrize("level_per", ["batch", "task"])
@pytest.mark.parametrize("clean_fraction", [None, 0.5])
def test_a_model_without_levels_has_level_zero_alone(
    clean_fraction: float | None, level_per: Literal["batch", "task"]
) -> None:
    g = rng()
    config = BatchConfig(batch_size=16, clean_fraction=clean_fraction, level_per=level_per)
    for _ in range(8):
        assert (draw_levels(0, config, generator=g) == 0).all()
        assert draw_batch(tiny_danp(0), Sawtooth(), config, generator=g).target.batch_size == 16


def test_levels_differ_within_a_batch_where_they_are_drawn_per_task() -> None:
    levels = draw_levels(3, BatchConfig(batch_size=64, level_per="task"), generator=rng())
    assert levels.unique().tolist() == [0, 1, 2, 3]


def test_a_batch_at_one_level_has_it_as_an_int_and_is_the_one_of_the_levels_tensor() -> None:
    model, config = tiny_danp(), BatchConfig(batch_size=4)
    for seed in range(8):
        batch = draw_batch(model, Sawtooth(), config, generator=rng(seed))
        g = rng(seed)
        augmented = sample_augmented_task(Sawtooth(), model.schedule, 4, generator=g)
        levels = draw_levels(2, config, generator=g)
        assert batch.level == levels[0]
        assert isinstance(batch.level, int)
        expected = augmented.masked(levels)
        for ours, theirs in zip(batch.auxiliary, expected.auxiliary, strict=True):
            assert torch.equal(ours.mask, theirs.mask)
        assert torch.equal(batch.target.y, expected.target.y)
        torch.testing.assert_close(
            batch_log_likelihood(model, batch), batch_log_likelihood(model, expected)
        )


def test_levels_drawn_per_task_stay_a_tensor() -> None:
    config = BatchConfig(batch_size=4, level_per="task")
    batch = draw_batch(tiny_danp(), Sawtooth(), config, generator=rng())
    assert isinstance(batch.level, torch.Tensor)
    assert batch.level.shape == (4,)


def test_the_likelihood_is_that_of_the_models_own_forward() -> None:
    model = tiny_danp()
    augmented = sample_augmented_task(Sawtooth(), model.schedule, 3, generator=rng())
    for level in range(3):
        batch = augmented.masked(torch.full((3,), level))
        predictive = model(
            augmented.context, augmented.levels[1:], augmented.levels[level].x, level
        )
        expected = predictive.log_prob(augmented.levels[level].y) / 50
        torch.testing.assert_close(batch_log_likelihood(model, batch), expected)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("conditioned", [False, True])
def test_compiled_code_of_the_likelihood_is_in_one_piece(conditioned: bool) -> None:
    """Code in many pieces took longer than none; on one thread there are most ways to break it."""
    config = DANPConfig(base=replace(TINY, conditioned=conditioned), num_levels=1)
    model = build_model("danp", config, seed=0)
    compiled = torch.compile(batch_log_likelihood, backend="eager", fullgraph=True)
    for level in (0, 1):
        batch = draw_batch(model, Sawtooth(), BatchConfig(4), levels=level, generator=rng())
        expected = batch_log_likelihood(model, batch)
        torch.testing.assert_close(compiled(model, batch), expected, rtol=1e-4, atol=1e-4)


def test_jitter_goes_on_the_diagonal_of_the_covariance() -> None:
    model = build_model("convgnp", TINY, seed=0)
    assert isinstance(model, ConvGNP)
    batch = draw_batch(model, Sawtooth(), BatchConfig(batch_size=2), generator=rng())
    predictive = model(batch.context, batch.target.x)
    dense = torch.distributions.MultivariateNormal(
        predictive.mean.squeeze(-1), predictive.covariance_matrix + 0.01 * torch.eye(50).double()
    )
    expected = dense.log_prob(batch.target.y.double().squeeze(-1)) / 50
    torch.testing.assert_close(batch_log_likelihood(model, batch, jitter=0.01), expected)


def test_validation_batches_hold_their_level_and_score_like_training_ones() -> None:
    model = tiny_danp()
    config = BatchConfig(batch_size=4)
    draw = partial(draw_batch, model, Sawtooth(), config, generator=rng())
    batches = [[draw(levels=f), draw(levels=f)] for f in range(3)]
    for level, group in enumerate(batches):
        for batch in group:
            assert batch.level == level
    scores = validation_log_likelihoods(model, batches)
    expected = torch.cat([batch_log_likelihood(model, b) for b in batches[1]])
    torch.testing.assert_close(scores[1], expected)


@pytest.mark.parametrize(
    "arguments", [{"batch_size": 0}, {"clean_fraction": 0.0}, {"level_per": "point"}]
)
def test_bad_batches_are_refused(arguments: dict[str, object]) -> None:
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"^{name} .*{value!r}"):
        BatchConfig(**arguments)  # type: ignore[arg-type]


def test_the_cause_of_a_failure_is_named() -> None:
    model = tiny_danp()
    config = BatchConfig(batch_size=2)
    batch = draw_batch(model, Sawtooth(), config, generator=rng())
    # Where nothing else is wrong, only the gradient is left.
    loss = torch.tensor(1.0)
    assert "gradient" in cause_of_failure(model, batch, loss)
    assert "loss is nan" in cause_of_failure(model, batch, loss * torch.nan)
    batch.target.y[1, 3] = torch.nan
    assert "target.y" in cause_of_failure(model, batch, loss)
    with torch.no_grad():
        model.core.encoder.log_scale[0] = torch.nan
    assert "core.encoder.log_scale" in cause_of_failure(model, batch, loss)


def test_a_failure_by_outputs_that_are_too_large_is_named() -> None:
    model = tiny_danp()
    batch = draw_batch(model, Sawtooth(), BatchConfig(batch_size=2), generator=rng())
    with torch.no_grad():
        for name, parameter in model.core.named_parameters():
            if name.startswith(("unet.out.", "head.")):
                parameter.fill_(1e38)
    assert "outputs are so large" in cause_of_failure(model, batch, torch.tensor(torch.nan))


@pytest.mark.parametrize("level", [0, 1])
def test_a_failure_by_an_auxiliary_set_is_named_where_the_model_sees_it(level: int) -> None:
    model, config = tiny_danp(), BatchConfig(batch_size=2)
    levels = torch.full((2,), level)
    batch = draw_batch(model, Sawtooth(), config, levels=levels, generator=rng())
    batch.auxiliary[0].y[1, 3] = torch.nan
    cause = cause_of_failure(model, batch, torch.tensor(torch.nan))
    assert ("auxiliary[0].y" in cause) == (level == 0)


def test_a_failure_by_an_indefinite_covariance_names_its_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = build_model("convgnp", TINY, seed=0)
    assert isinstance(model, ConvGNP)
    batch = draw_batch(model, Sawtooth(), BatchConfig(batch_size=3), generator=rng())
    made = model.predict(batch.context, batch.target.x)
    sign = torch.tensor([1.0, -1.0, 1.0]).reshape(3, 1, 1)
    # The factor outweighs the diagonal, so that the marginal variances stay positive.
    broken = LowRankNormal(made.mean, torch.ones_like(made.cov_factor), sign * made.cov_diag)
    assert (broken.variance > 0).all()
    assert torch.linalg.eigvalsh(broken.covariance_matrix)[1].min() < 0
    monkeypatch.setattr(model, "level_predictive", lambda batch: broken)
    cause = cause_of_failure(model, batch, torch.tensor(torch.nan))
    assert "tasks [1]" in cause


def test_without_a_threshold_the_loss_is_minus_the_mean() -> None:
    log_likelihood = torch.tensor([3.0, -1e4, 0.5], dtype=torch.float64)
    assert training_loss(log_likelihood, robust_threshold=None) == -log_likelihood.mean()


@pytest.mark.parametrize(
    ("log_likelihood", "gradient"), [(3.0, 1.0), (-2.0, 1.0), (-3.0, 0.5), (-1e6 - 1.0, 1e-6)]
)
def test_below_the_threshold_a_tasks_gradient_shrinks(
    log_likelihood: float, gradient: float
) -> None:
    value = torch.tensor([log_likelihood], dtype=torch.float64, requires_grad=True)
    loss = training_loss(value, robust_threshold=-2.0)
    loss.backward()
    assert value.grad is not None
    assert -value.grad.item() == pytest.approx(gradient, rel=1e-5)
    expected = log_likelihood if log_likelihood > -2.0 else -2.0 - math.log1p(-2.0 - log_likelihood)
    assert loss.item() == pytest.approx(-expected, rel=1e-9)
