"""Gaussians with low-rank covariance."""

import math
import re
from typing import Any

import mpmath  # type: ignore[import-untyped]  # comes with PyTorch, through sympy
import numpy as np
import pytest
import torch
from gaussians import RANKS, dense, mixture, normal, property_test, values
from hypothesis import given
from hypothesis import strategies as st
from randomness import rng
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, Normal

from danp_lib.distributions.gaussian import VARIANCE_FLOOR, DiagonalNormal, LowRankNormal
from danp_lib.distributions.mixture import Mixture


class TestLowRankNormal:
    @pytest.mark.parametrize("rank", RANKS)
    def test_the_log_density_is_the_dense_one(self, rank: int) -> None:
        distribution, y = normal(rank=rank), values(2)
        torch.testing.assert_close(
            distribution.log_prob(y),
            dense(distribution).log_prob(y.squeeze(-1)),
            rtol=1e-11,
            atol=0,
        )

    @given(
        points=st.integers(1, 12),
        rank=st.integers(0, 15),
        small=st.sampled_from([1e-6, 1e-3, 1.0]),
        seed=st.integers(0, 99),
    )
    @property_test
    def test_the_log_density_is_the_dense_one_at_any_scale(
        self, points: int, rank: int, small: float, seed: int
    ) -> None:
        made = normal(points=points, rank=rank, seed=seed)
        distribution = LowRankNormal(made.mean, made.cov_factor, small * made.cov_diag)
        y = distribution.sample(generator=rng(seed))
        expected = dense(distribution).log_prob(y.squeeze(-1))
        torch.testing.assert_close(distribution.log_prob(y), expected, rtol=1e-6, atol=1e-6)

    @pytest.mark.parametrize("rank", [1, 3, 8])
    def test_a_large_factor_beside_a_small_variance_costs_no_digits(self, rank: int) -> None:
        """Against the density in 60 digits; that of ordinary rows of the batch stays as it was."""
        made = normal(rank=rank)
        scale = torch.tensor([1.0, 1e5], dtype=torch.float64).reshape(2, 1, 1)
        large = LowRankNormal(made.loc, scale * made.cov_factor, 1e-6 * made.cov_diag)
        y = large.sample(generator=rng())
        found = large.log_prob(y)
        assert torch.equal(found[0], large.log_prob(y, check=False)[0])
        with mpmath.workdps(60):
            factor = mpmath.matrix(large.cov_factor[1].tolist())
            covariance = factor * factor.T + mpmath.diag(large.cov_diag[1, :, 0].tolist())
            residual = mpmath.matrix((y - large.loc)[1].tolist())
            squared = (residual.T * mpmath.lu_solve(covariance, residual))[0]
            log_det = mpmath.log(mpmath.det(covariance))
            expected = float(-(squared + log_det + 5 * mpmath.log(2 * mpmath.pi)) / 2)
        assert float(found[1]) == pytest.approx(expected, abs=1e-6)

    def test_the_gradient_of_a_large_factor_is_finite_and_that_of_its_density(self) -> None:
        made, y = normal(batch=(), points=4, rank=2), values()[:4]

        def log_prob(loc: Tensor, factor: Tensor, diagonal: Tensor) -> Tensor:
            return LowRankNormal(loc, 1e6 * factor, diagonal).log_prob(y)

        parts = tuple(p.requires_grad_() for p in (made.loc, made.cov_factor, made.cov_diag))
        assert torch.autograd.gradcheck(log_prob, parts, eps=1e-6, atol=1e-4)

    def test_the_covariance_by_hand(self) -> None:
        zero, factor = torch.zeros(2, 1), torch.tensor([[1.0], [2.0]])
        distribution = LowRankNormal(zero, factor, torch.tensor([[0.5], [0.25]]))
        expected = torch.tensor([[1.5, 2.0], [2.0, 4.25]], dtype=torch.float64)
        assert torch.equal(distribution.covariance_matrix, expected)
        assert distribution.variance.flatten().tolist() == [1.5, 4.25]

    def test_everything_is_float64_with_the_shape_of_outputs(self) -> None:
        distribution = LowRankNormal(
            torch.zeros(3, 5, 1), torch.zeros(3, 5, 2), torch.ones(3, 5, 1)
        )
        assert distribution.batch_shape == (3,)
        assert distribution.event_shape == (5, 1)
        for tensor in (
            distribution.mean,
            distribution.variance,
            distribution.stddev,
            distribution.cdf(torch.zeros(3, 5, 1)),
            distribution.quantile(0.3),
            distribution.sample(generator=rng()),
        ):
            assert tensor.shape == (3, 5, 1)
            assert tensor.dtype == torch.float64
        assert distribution.log_prob(torch.zeros(3, 5, 1)).shape == (3,)
        assert distribution.sample((7, 2), generator=rng()).shape == (7, 2, 3, 5, 1)

    @pytest.mark.parametrize("rank", RANKS)
    def test_a_marginal_is_a_slice(self, rank: int) -> None:
        distribution = normal(rank=rank)
        index = torch.tensor([3, 0, 4])
        marginal = distribution.marginal(index)
        assert torch.equal(marginal.mean, distribution.mean[:, index])
        torch.testing.assert_close(
            marginal.covariance_matrix, distribution.covariance_matrix[:, index][:, :, index]
        )
        expected = MultivariateNormal(
            distribution.mean[:, index, 0],
            distribution.covariance_matrix[:, index][:, :, index],
            validate_args=False,
        )
        y = values(2)[:, :3]
        torch.testing.assert_close(marginal.log_prob(y), expected.log_prob(y.squeeze(-1)))
        assert torch.equal(distribution.marginal(slice(1, 3)).mean, distribution.mean[:, 1:3])

    @pytest.mark.parametrize("rank", RANKS)
    def test_the_entropy_is_the_dense_one(self, rank: int) -> None:
        made = normal(rank=rank)
        torch.testing.assert_close(made.entropy(), dense(made).entropy(), rtol=1e-11, atol=0)

    def test_permuting_the_points_changes_nothing(self) -> None:
        distribution, y = normal(), values(2)
        order = torch.tensor([4, 2, 0, 1, 3])
        torch.testing.assert_close(
            distribution.marginal(order).log_prob(y[:, order]), distribution.log_prob(y)
        )

    def test_a_point_alone_is_torchs_normal(self) -> None:
        distribution, y = normal(points=1), values(2)[:, :1]
        expected = Normal(distribution.mean, distribution.stddev)
        torch.testing.assert_close(distribution.log_prob(y), expected.log_prob(y)[:, 0, 0])
        torch.testing.assert_close(distribution.cdf(y), expected.cdf(y))

    @given(level=st.floats(1e-6, 1 - 1e-6))
    @property_test
    def test_quantiles_invert_the_distribution_function(self, level: float) -> None:
        distribution = normal()
        cdf = distribution.cdf(distribution.quantile(level))
        torch.testing.assert_close(cdf, torch.full_like(cdf, level), rtol=1e-9, atol=1e-12)
        assert torch.equal(distribution.icdf(level), distribution.quantile(level))

    def test_a_level_without_a_point_is_refused(self) -> None:
        distribution = normal()
        levels = torch.full_like(distribution.mean[0, :, 0], 0.5)
        for function in (distribution.cdf, distribution.icdf):
            with pytest.raises(ValueError, match="points, 1"):
                function(levels)

    @pytest.mark.parametrize("level", [0.0, 1.0, -0.5, math.nan])
    def test_a_quantile_at_no_level_is_refused(self, level: float) -> None:
        for distribution in (normal(), mixture()):
            with pytest.raises(ValueError, match=f"level .*{level}"):
                distribution.quantile(level)

    @pytest.mark.parametrize("rank", [0, 3, 8])
    def test_samples_have_the_mean_and_covariance(self, rank: int) -> None:
        n = 40_000
        distribution = normal(batch=(), rank=rank)
        sample = distribution.sample((n,), generator=rng()).squeeze(-1)
        covariance = distribution.covariance_matrix
        variance = covariance.diagonal()
        error = (sample.mean(dim=0) - distribution.mean.squeeze(-1)).abs()
        assert (error < 5 * (variance / n).sqrt()).all()
        tolerance = 5 * ((variance[:, None] * variance + covariance.square()) / n).sqrt()
        assert ((sample.T.cov() - covariance).abs() < tolerance).all()

    def test_the_batch_can_be_indexed(self) -> None:
        distribution, y = normal((3, 2)), values(3, 2)
        picked = distribution[1]
        assert picked.batch_shape == (2,)
        torch.testing.assert_close(picked.log_prob(y[1]), distribution.log_prob(y)[1])

    def test_the_gradient_is_the_dense_one(self) -> None:
        y = values(2)
        gradients = []
        for kind in ("low rank", "dense"):
            made = normal()
            leaves = [made.loc, made.cov_diag, made.cov_factor]
            for leaf in leaves:
                leaf.requires_grad_()
            log_prob = (
                made.log_prob(y) if kind == "low rank" else dense(made).log_prob(y.squeeze(-1))
            )
            gradients.append(torch.autograd.grad(log_prob.sum(), leaves))
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other)

    @pytest.mark.parametrize(
        "shapes",
        [
            ((5,), (5, 2), (5,)),
            ((5, 1), (5, 2), (4, 1)),
            ((5, 1), (4, 2), (5, 1)),
            ((5, 1), (5,), (5, 1)),
            ((2, 5, 1), (5, 2), (2, 5, 1)),
        ],
    )
    def test_shapes_that_do_not_fit_are_refused(self, shapes: Any) -> None:
        with pytest.raises(ValueError, match=r"^loc and cov_diag "):
            LowRankNormal(*(torch.ones(shape) for shape in shapes))

    def test_a_value_of_another_shape_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^value .*5, 1\)"):
            normal().log_prob(torch.zeros(2, 4, 1))

    @pytest.mark.parametrize("shape", [(3, 5, 1), (2, 3, 5, 1), (4, 1), (2, 4, 1), (0, 5, 1)])
    def test_a_value_of_another_batch_or_number_of_points_is_refused(self, shape: Any) -> None:
        value = torch.full(shape, 0.5)
        words = re.escape(str(shape))
        for made in (normal(), mixture()):
            with pytest.raises(ValueError, match=rf"^value must have shape .* got {words}\.$"):
                made.log_prob(value)
            for function in (made.cdf, made.icdf):
                with pytest.raises(ValueError, match=rf"^value must be a number .* got {words} "):
                    function(value)
            for fitting in ((7, 1, 5, 1), (1, 5, 1), (5, 1)):
                assert made.log_prob(torch.zeros(fitting)).shape == (*fitting[:-3], 2)
                assert made.cdf(torch.zeros(fitting)).shape == (*fitting[:-3], 2, 5, 1)

    @pytest.mark.parametrize("factor", [math.inf, math.nan, 1e200])
    @pytest.mark.parametrize("rank", [3, 8])
    def test_a_covariance_without_a_cholesky_factor_is_refused(
        self, rank: int, factor: float
    ) -> None:
        made = normal(rank=rank)
        broken = LowRankNormal(made.mean, factor * made.cov_factor, made.cov_diag)
        with pytest.raises(ValueError, match=r"Cholesky factorisation failed for 2 of 2 "):
            broken.log_prob(values(2))

    @pytest.mark.parametrize("variance", [-1.0, 0.0, math.nan, math.inf])
    @pytest.mark.parametrize("rank", RANKS)
    def test_a_variance_that_is_none_is_refused_at_any_rank(
        self, rank: int, variance: float
    ) -> None:
        made = normal(rank=rank)
        made.cov_diag[1, 3] = variance
        with pytest.raises(ValueError, match=f"variance .*{variance}"):
            made.log_prob(values(2))

    @pytest.mark.parametrize("mean", [math.nan, -math.inf])
    @pytest.mark.parametrize("rank", RANKS)
    def test_a_mean_that_is_not_finite_is_refused(self, rank: int, mean: float) -> None:
        made = normal(rank=rank)
        made.loc[1, 3] = mean
        with pytest.raises(ValueError, match=f"loc .*{mean}"):
            made.log_prob(values(2))

    @pytest.mark.parametrize("rank", RANKS)
    def test_values_that_are_not_finite_are_refused(self, rank: int) -> None:
        bad = values(2)
        for number in (math.nan, math.inf):
            bad[1, 2] = number
            with pytest.raises(ValueError, match=f"^value must be finite, got {number}"):
                normal(rank=rank).log_prob(bad)
            assert normal(rank=rank).log_prob(bad, check=False).shape == (2,)

    @pytest.mark.parametrize("size", [math.nan, math.inf])
    @pytest.mark.parametrize("rank", [1, 3, 8])
    def test_a_factor_that_is_not_finite_is_refused(self, rank: int, size: float) -> None:
        made = normal(rank=rank)
        broken = LowRankNormal(made.mean, torch.full_like(made.cov_factor, size), made.cov_diag)
        with pytest.raises(ValueError, match=r"^the covariance must be"):
            broken.log_prob(values(2))

    @pytest.mark.parametrize(
        ("part", "wrong"), [("loc", math.nan), ("cov_diag", -1.0), ("cov_factor", math.inf)]
    )
    def test_samples_and_quantiles_of_no_gaussian_are_refused(
        self, part: str, wrong: float
    ) -> None:
        made = normal()
        getattr(made, part)[1, 3] = wrong
        for ask in (lambda: made.sample(generator=rng(0)), lambda: made.quantile(0.5)):
            with pytest.raises(ValueError, match=rf"{part} .*{wrong}"):
                ask()

    def test_what_is_no_tensor_is_refused(self) -> None:
        made, array = normal(), np.zeros((2, 5, 1))
        odd: Any = array
        for ask in (lambda: made.log_prob(odd), lambda: made.cdf(odd), lambda: made.icdf(odd)):
            with pytest.raises(
                ValueError, match=r"^value must be a Tensor, got ndarray; use torch"
            ):
                ask()
        with pytest.raises(ValueError, match=r"^cov_diag must be a Tensor, got ndarray"):
            LowRankNormal(made.loc, made.cov_factor, odd)
        with pytest.raises(ValueError, match=r"^logits must be a Tensor, got ndarray"):
            Mixture(odd, made)
        nested: Any = mixture()
        with pytest.raises(ValueError, match=r"^components must be a LowRankNormal, got Mixture"):
            Mixture(torch.zeros(2), nested)

    def test_the_mode_is_the_mean(self) -> None:
        made = normal()
        assert torch.equal(made.mode, made.loc)

    @pytest.mark.parametrize("rank", RANKS)
    def test_without_checks_nothing_is_refused(self, rank: int) -> None:
        made, y = normal(rank=rank), values(2)
        assert torch.equal(made.log_prob(y, check=False), made.log_prob(y))
        made.loc[1, 3] = math.nan
        assert made.log_prob(y, check=False).isnan().tolist() == [False, True]


class TestDiagonalNormal:
    def test_it_is_independent_normals(self) -> None:
        made, y = normal(rank=0), values(2)
        distribution = DiagonalNormal(made.mean, made.variance)
        expected = Normal(made.mean, made.variance.sqrt()).log_prob(y).sum(dim=(-2, -1))
        torch.testing.assert_close(distribution.log_prob(y), expected)
        assert torch.equal(distribution.covariance_matrix, made.variance.squeeze(-1).diag_embed())

    def test_what_is_made_of_it_is_one_too(self) -> None:
        made = DiagonalNormal(torch.zeros(2, 5, 1), torch.arange(1.0, 11.0).reshape(2, 5, 1))
        wide = made.expand((3, 2))
        assert wide.batch_shape == (3, 2)
        assert torch.equal(wide.variance[1], made.variance)
        assert wide.cov_diag.data_ptr() == made.cov_diag.data_ptr()
        for other in (wide, made[1], made.marginal(slice(2, 4)), made.map(torch.clone)):
            assert type(other) is DiagonalNormal
            assert other.cov_factor.shape == (*other.loc.shape[:-1], 0)
        assert made.marginal(slice(2, 4)).variance[..., 0].tolist() == [[3.0, 4.0], [8.0, 9.0]]

    def test_the_floor_bounds_the_density_of_a_point(self) -> None:
        zero = torch.zeros(1, 1, dtype=torch.float64)
        sharpest = DiagonalNormal(zero, torch.full_like(zero, VARIANCE_FLOOR))
        assert sharpest.log_prob(zero).exp().item() == pytest.approx(398.942, abs=1e-3)


def test_the_arguments_are_torchs() -> None:
    made = normal()
    theirs = LowRankMultivariateNormal(
        loc=made.loc.squeeze(-1), cov_factor=made.cov_factor, cov_diag=made.cov_diag.squeeze(-1)
    )
    y = values(2)
    again = LowRankNormal(
        loc=theirs.loc.unsqueeze(-1),
        cov_factor=theirs.cov_factor,
        cov_diag=theirs.cov_diag.unsqueeze(-1),
    )
    torch.testing.assert_close(again.log_prob(y), theirs.log_prob(y.squeeze(-1)))
    torch.testing.assert_close(again.variance.squeeze(-1), theirs.variance)


def test_a_gaussian_has_a_dimension_of_points() -> None:
    with pytest.raises(ValueError, match=r"must have shape \(\*batch, points, 1\)"):
        LowRankNormal(torch.zeros(1), torch.zeros(0), torch.ones(1))
