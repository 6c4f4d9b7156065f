"""Mixtures, and what they share with the Gaussians that they are of."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gaussians import RANKS, dense, mixture, normal, property_test, values
from hypothesis import given
from hypothesis import strategies as st
from randomness import rng
from torch.distributions import Categorical, MixtureSameFamily, Normal

from danp_lib.distributions.gaussian import DiagonalNormal, LowRankNormal
from danp_lib.distributions.mixture import Mixture


class TestMixture:
    @pytest.mark.parametrize("rank", RANKS)
    def test_it_is_torchs_mixture(self, rank: int) -> None:
        made, y = mixture(rank=rank), values(2)
        reference = MixtureSameFamily(
            Categorical(logits=made.logits), dense(made.components), validate_args=False
        )
        torch.testing.assert_close(made.log_prob(y), reference.log_prob(y.squeeze(-1)))
        torch.testing.assert_close(made.mean.squeeze(-1), reference.mean)
        torch.testing.assert_close(made.variance.squeeze(-1), reference.variance)

    def test_a_mixture_of_one_is_its_component(self) -> None:
        component, y = normal((2, 1)), values(2)
        alone = Mixture(torch.full((2, 1), -3.0), component)
        assert alone.num_components == 1
        torch.testing.assert_close(alone.log_prob(y), component[:, 0].log_prob(y))
        torch.testing.assert_close(alone.mean, component[:, 0].mean)
        torch.testing.assert_close(alone.variance, component[:, 0].variance)
        torch.testing.assert_close(alone.cdf(y), component[:, 0].cdf(y))
        torch.testing.assert_close(alone.quantile(0.2), component[:, 0].quantile(0.2))

    def test_equal_components_are_one(self) -> None:
        component, y = normal((2, 1)), values(2)
        same = Mixture(torch.randn(2, 3, generator=rng()), component[:, torch.zeros(3).long()])
        torch.testing.assert_close(same.log_prob(y), component[:, 0].log_prob(y))
        torch.testing.assert_close(same.variance, component[:, 0].variance)

    def test_weights_are_known_up_to_a_constant(self) -> None:
        made, y = mixture(), values(2)
        shifted = Mixture(made.logits + 100.0, made.components)
        torch.testing.assert_close(shifted.log_prob(y), made.log_prob(y))

    def test_components_of_no_weight_do_not_matter(self) -> None:
        made, y = mixture(), values(2)
        parts = (made.components.loc, made.components.cov_factor, made.components.cov_diag)
        far = LowRankNormal(*(torch.cat([part, 1e6 * part[:, :1].abs()], dim=1) for part in parts))
        nothing = torch.full((2, 1), -math.inf, dtype=torch.float64)
        padded = Mixture(torch.cat([made.logits, nothing], dim=1), far)
        torch.testing.assert_close(padded.log_prob(y), made.log_prob(y))
        torch.testing.assert_close(padded.mean, made.mean)
        torch.testing.assert_close(padded.variance, made.variance)
        torch.testing.assert_close(padded.quantile(0.9), made.quantile(0.9))
        assert padded.sample((2000,), generator=rng()).abs().max() < 100

    def test_a_marginal_has_the_marginals_of_its_components(self) -> None:
        made, y = mixture(), values(2)
        index = torch.tensor([2, 0])
        torch.testing.assert_close(made.marginal(index).mean, made.mean[:, index])
        expected = torch.logsumexp(
            made.logits + made.components.marginal(index).log_prob(y[:, None, index]), dim=1
        )
        torch.testing.assert_close(made.marginal(index).log_prob(y[:, index]), expected)

    @pytest.mark.parametrize("rank", RANKS)
    def test_the_gaussian_of_its_moments_has_its_mean_and_covariance(self, rank: int) -> None:
        made = mixture(rank=rank)
        second = made.components.covariance_matrix + made.components.mean @ made.components.mean.mT
        raw = (made.logits.exp()[..., None, None] * second).sum(dim=1)
        matched = made.moment_matched()
        torch.testing.assert_close(matched.mean, made.mean)
        torch.testing.assert_close(matched.covariance_matrix, raw - made.mean @ made.mean.mT)
        torch.testing.assert_close(matched.variance, made.variance)
        of_samples = np.cov(made[0].sample((20_000,), generator=rng())[..., 0].T.numpy())
        covariance = matched.covariance_matrix[0].numpy()
        np.testing.assert_allclose(of_samples, covariance, atol=0.05 * covariance.max())

    def test_the_gaussian_of_its_moments_is_consistent(self) -> None:
        made, y, index = mixture(), values(2), torch.tensor([2, 0])
        first, then = (
            made.marginal(index).moment_matched(),
            made.moment_matched().marginal(index),
        )
        torch.testing.assert_close(first.log_prob(y[:, index]), then.log_prob(y[:, index]))

    def test_the_gaussian_of_one_component_is_that(self) -> None:
        component, y = normal((2, 1), rank=0), values(2)
        alone = Mixture(torch.zeros(2, 1), component).moment_matched()
        torch.testing.assert_close(alone.log_prob(y), component[:, 0].log_prob(y))

    @given(level=st.floats(1e-4, 1 - 1e-4), seed=st.integers(0, 20))
    @property_test
    def test_quantiles_invert_the_distribution_function(self, level: float, seed: int) -> None:
        made = mixture(seed=seed)
        cdf = made.cdf(made.quantile(level))
        torch.testing.assert_close(cdf, torch.full_like(cdf, level), rtol=1e-9, atol=1e-12)

    def test_quantiles_have_no_gradient_rather_than_a_wrong_one(self) -> None:
        made = mixture(rank=2)
        for part in (made.logits, made.components.loc):
            part.requires_grad_()
        assert not made.icdf(0.3).requires_grad
        assert made.cdf(0.3).requires_grad

    def test_a_value_that_is_no_set_of_outputs_is_refused(self) -> None:
        made = mixture(seed=0)
        for function in (made.cdf, made.icdf):
            with pytest.raises(ValueError, match=r"^value .*\(5,\)"):
                function(torch.full((5,), 0.5))
        for shape in [(), (5,), (2, 4, 1)]:
            with pytest.raises(ValueError, match=r"^value .*5, 1\)"):
                made.log_prob(torch.zeros(shape))

    def test_one_number_stands_for_every_output(self) -> None:
        made = mixture(seed=0)
        everywhere = torch.full((2, 5, 1), 0.3, dtype=torch.float64)
        for number in (0.3, torch.tensor(0.3, dtype=torch.float64)):
            assert torch.equal(made.cdf(number), made.cdf(everywhere))
            assert torch.equal(made.icdf(number), made.icdf(everywhere))
        assert torch.equal(made.icdf(0.3), made.quantile(0.3))

    def test_every_output_can_have_a_level_of_its_own(self) -> None:
        made = mixture(seed=0)
        levels = torch.linspace(0.1, 0.9, 10, dtype=torch.float64).reshape(2, 5, 1)
        torch.testing.assert_close(made.cdf(made.icdf(levels)), levels, rtol=1e-9, atol=1e-12)
        alone = Mixture(torch.zeros(2, 1), made.components[:, :1])
        expected = made.components[:, 0].icdf(levels)
        torch.testing.assert_close(alone.icdf(levels), expected)
        assert made.icdf(0.0).tolist() == torch.full((2, 5, 1), -math.inf).tolist()
        assert made.icdf(1.0).tolist() == torch.full((2, 5, 1), math.inf).tolist()

    @pytest.mark.parametrize("batch", [(), (2,)])
    def test_no_samples_are_an_empty_tensor(self, batch: tuple[int, ...]) -> None:
        made = mixture(batch)
        for shape in [(0,), (3, 0)]:
            sample = made.sample(shape, generator=rng())
            expected = normal(batch).sample(shape, generator=rng())
            assert sample.shape == expected.shape == (*shape, *batch, 5, 1)
            assert sample.dtype == expected.dtype

    def test_quantiles_between_two_far_components(self) -> None:
        mean = torch.tensor([0.0, 1.0], dtype=torch.float64).reshape(2, 1, 1)
        made = Mixture(
            torch.tensor([0.25, 0.75]).log(), DiagonalNormal(mean, torch.full_like(mean, 1e-6))
        )
        # A quarter of the mass lies at 0, so the level 0.1 is the first component's level 0.4.
        expected = 1e-3 * Normal(0.0, 1.0).icdf(torch.tensor(0.4)).item()
        assert made.quantile(0.1).item() == pytest.approx(expected, abs=1e-9)
        assert made.quantile(0.5).item() == pytest.approx(1.0, abs=2e-3)

    def test_the_distribution_function_is_the_share_of_samples_below(self) -> None:
        n = 40_000
        made = mixture()
        sample, at = made.sample((n,), generator=rng()), values(2)
        p = made.cdf(at)
        share = (sample <= at).double().mean(dim=0)
        assert ((share - p).abs() < 5 * (p * (1 - p) / n).sqrt() + 1 / n).all()

    @pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
    def test_samples_of_every_mixture_of_a_batch_are_its_own(self, batch: tuple[int, ...]) -> None:
        n = 20_000
        made = mixture(batch)
        assert made.sample(generator=rng()).shape == (*batch, 5, 1)
        assert made.sample((3, 4), generator=rng()).shape == (3, 4, *batch, 5, 1)
        sample = made.sample((n,), generator=rng())
        error = (sample.mean(dim=0) - made.mean).abs()
        assert (error < 5 * (made.variance / n).sqrt()).all()
        # The kurtosis of these mixtures stays below 6, and so the variance's standard error.
        assert ((sample.var(dim=0) / made.variance - 1).abs() < 5 * (5 / n) ** 0.5).all()

    def test_a_sample_stays_with_its_component_at_all_points(self) -> None:
        mean = torch.tensor([-1.0, 1.0], dtype=torch.float64).reshape(2, 1, 1).expand(2, 5, 1)
        made = Mixture(torch.zeros(2), DiagonalNormal(mean, torch.full_like(mean, 1e-6)))
        sign = made.sample((1000,), generator=rng()).sign().squeeze(-1)
        assert (sign == sign[:, :1]).all()
        assert abs(sign[:, 0].mean()) < 5 / 1000**0.5

    def test_logits_that_give_no_weights_are_refused(self) -> None:
        components = normal((2, 4))
        for row in ([0.0, math.nan, 0.0, 0.0], [-math.inf] * 4, [math.inf, 0.0, 0.0, 0.0]):
            logits = torch.tensor([[0.0, -math.inf, 0.0, 0.0], row])
            with pytest.raises(ValueError, match=r"^logits must be numbers or -inf.* got \["):
                Mixture(logits, components)
        with pytest.raises(ValueError, match=r"^value must be finite, got nan"):
            mixture().log_prob(torch.full_like(values(2), math.nan))

    def test_logits_of_another_shape_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^logits "):
            Mixture(torch.zeros(2, 3), normal((2, 4)))
        with pytest.raises(ValueError, match=r"^logits "):
            Mixture(torch.zeros(()), normal(()))


@pytest.mark.parametrize("make", [normal, mixture])
def test_samples_need_a_source_of_randomness(make: Any) -> None:
    before, nothing = torch.get_rng_state(), None
    with pytest.raises(ValueError, match=r"^generator must be a Generator, got NoneType"):
        make().sample(generator=nothing)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("make", [normal, mixture])
def test_sampling_is_determined_by_its_generator_and_leaves_the_global_one(make: Any) -> None:
    before = torch.get_rng_state()
    first, again = (make().sample((3,), generator=rng(5)) for _ in range(2))
    assert torch.equal(first, again)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("made", [normal((2, 3)), mixture((2, 3))])
class TestBatches:
    @pytest.mark.parametrize(
        "index", [1, np.int64(1), -1, slice(1, None), (0, 2), (..., 0), torch.tensor([1, 0, 1])]
    )
    def test_an_index_selects_from_the_batch_as_from_a_tensor(
        self, made: LowRankNormal | Mixture, index: Any
    ) -> None:
        y = values(2, 3)
        places = torch.arange(6).reshape(2, 3)[index]
        chosen = made[index]
        assert chosen.batch_shape == places.shape
        own = y.flatten(end_dim=1)[places]
        torch.testing.assert_close(chosen.log_prob(own), made.log_prob(y).flatten()[places])
        torch.testing.assert_close(chosen.mean, made.mean.flatten(end_dim=1)[places])

    def test_an_index_stays_out_of_components_and_points(
        self, made: LowRankNormal | Mixture
    ) -> None:
        with pytest.raises(IndexError):
            made[0, 0, 0]

    def test_an_expanded_one_gives_every_row_what_it_gave(
        self, made: LowRankNormal | Mixture
    ) -> None:
        wide, y = made.expand((4, 2, 3)), values(2, 3)
        assert wide.batch_shape == (4, 2, 3)
        torch.testing.assert_close(wide.log_prob(y), made.log_prob(y).expand(4, 2, 3))
        torch.testing.assert_close(wide.quantile(0.3)[2], made.quantile(0.3))

    def test_a_repr_says_what_it_is(self, made: LowRankNormal | Mixture) -> None:
        gaussian = "LowRankNormal(batch_shape={}, points=5, rank=3)"
        assert repr(made) in (
            gaussian.format("(2, 3)"),
            f"Mixture(batch_shape=(2, 3), components={gaussian.format('(2, 3, 4)')})",
        )


@pytest.mark.parametrize("made", [normal(), mixture()])
def test_a_level_that_is_none_is_refused(made: LowRankNormal | Mixture) -> None:
    for level in (-0.1, 1.1, math.nan):
        for value in (level, torch.tensor([0.5, 0.5, level, 0.5, 0.5]).unsqueeze(-1)):
            with pytest.raises(ValueError, match=rf"^the level .* in \[0, 1\], got {level}"):
                made.icdf(value)
    assert made.icdf(1.0).isposinf().all()


def test_one_index_and_one_number_a_point_are_refused() -> None:
    normal = LowRankNormal(torch.zeros(5, 7, 1), torch.ones(5, 7, 2), torch.ones(5, 7, 1))
    mixture = Mixture(torch.zeros(5), normal)
    for index in (0, torch.tensor(0)):
        with pytest.raises(ValueError, match=r"index must be a slice or a tensor \(points,\), got"):
            normal.marginal(index)  # type: ignore[arg-type]
    for distribution in (normal, mixture):
        with pytest.raises(ValueError, match=r"value must be a number or \(..., points, 1\)"):
            distribution.cdf(torch.zeros(7))
        with pytest.raises(ValueError, match="level of a quantile must be a number"):
            distribution.quantile(torch.tensor([0.1, 0.5]))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["cdf", "icdf"])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (5, 5)])
def test_values_without_their_last_dimension_are_refused(method: str, shape: Any) -> None:
    """They would be broadcast to a value for each pair of points."""
    normal = DiagonalNormal(torch.zeros(5, 1), torch.ones(5, 1))
    for made in (normal, Mixture(torch.zeros(3), normal.expand((3,)))):
        with pytest.raises(ValueError, match=r"a number or \(\.\.\., points, 1\), got"):
            getattr(made, method)(torch.full(shape, 0.5))
        assert getattr(made, method)(torch.full((5, 1), 0.5)).shape == (5, 1)
