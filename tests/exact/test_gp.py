"""The exact posterior of a Gaussian process against dense formulas, and with noise."""

from __future__ import annotations

import pytest
import torch
from exact_tasks import average_likelihoods, points, task_of
from randomness import rng
from torch import Tensor

from danp_lib.data.generators import GaussianProcess
from danp_lib.data.points import PointSet, Task
from danp_lib.distributions.gaussian import VARIANCE_FLOOR, DiagonalNormal
from danp_lib.exact.gp import NoisyGaussianProcessOracle
from danp_lib.exact.oracles import GaussianProcessOracle


def dense_gp(task: Task, nugget: float, floor: float) -> tuple[Tensor, Tensor]:
    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((a[:, None] - b[None]) / 0.25) ** 2)

    xc, yc, xt = task.xc[0, :, 0].double(), task.yc[0, :, 0].double(), task.xt[0, :, 0].double()
    inverse = torch.linalg.inv(kernel(xc, xc) + nugget * torch.eye(len(xc), dtype=torch.float64))
    cross = kernel(xt, xc)
    prior = kernel(xt, xt) + floor * torch.eye(len(xt), dtype=torch.float64)
    return cross @ inverse @ yc, prior - cross @ inverse @ cross.T


@pytest.mark.parametrize("context_variance", [1e-6, 1e-4])
def test_gp_is_the_dense_formula(context_variance: float) -> None:
    task = task_of("gp", 1, context_size=7, num_targets=12)
    oracle = GaussianProcessOracle(context_variance=context_variance)
    predicted = oracle.predict(task.context, task.xt)
    mean, covariance = dense_gp(task, context_variance, 1e-6)
    torch.testing.assert_close(predicted.mean[0, :, 0], mean, rtol=0, atol=1e-8)
    torch.testing.assert_close(predicted.covariance_matrix[0], covariance, rtol=0, atol=1e-9)
    expected = torch.distributions.MultivariateNormal(mean, covariance, validate_args=False)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target)[0],
        expected.log_prob(task.yt[0, :, 0].double()),
        rtol=0,
        atol=1e-3,
    )


def test_gp_marginals_are_slices() -> None:
    task = task_of("gp", 3, context_size=4, num_targets=9)
    oracle = GaussianProcessOracle()
    joint = oracle.predict(task.context, task.xt)
    index = torch.tensor([7, 2])
    part = oracle.predict(task.context, task.xt[:, index])
    torch.testing.assert_close(part.covariance_matrix, joint.marginal(index).covariance_matrix)


def test_gp_obeys_the_chain_rule() -> None:
    task = task_of("gp", 4, context_size=5, num_targets=20)
    first = PointSet(task.xt[:, :8], task.yt[:, :8])
    rest = PointSet(task.xt[:, 8:], task.yt[:, 8:])
    oracle = GaussianProcessOracle(context_variance=VARIANCE_FLOOR)
    chain = oracle.log_prob(task.context, first) + oracle.log_prob(task.context.concat(first), rest)
    torch.testing.assert_close(oracle.log_prob(task.context, task.target), chain, atol=1e-4, rtol=0)


def test_gp_diagonal_and_exact_context_bound_the_joint() -> None:
    task = task_of("gp", 30, context_size=30)
    exact, floored = GaussianProcessOracle(), GaussianProcessOracle(context_variance=VARIANCE_FLOOR)
    joint = floored.log_prob(task.context, task.target)
    predicted = floored.predict(task.context, task.xt)
    diagonal = DiagonalNormal(predicted.mean, predicted.variance)
    assert 45 < average_likelihoods(diagonal.log_prob(task.yt)).mean() < 70
    assert 210 < average_likelihoods(exact.log_prob(task.context, task.target)).mean() < 250
    assert 160 < average_likelihoods(joint).mean() < 190


def test_gp_refuses_what_is_singular() -> None:
    with pytest.raises(ValueError, match=r"^variance_floor "):
        GaussianProcessOracle(variance_floor=0.0)
    crowd = points(torch.linspace(0.0, 0.1, 40).tolist(), [0.0] * 40)
    with pytest.raises(ValueError, match=r"^context_variance "):
        GaussianProcessOracle(context_variance=1e-18).predict(crowd, torch.zeros(1, 1, 1))
    # So close that their correlation is one but for the last bit of a float64.
    pair = points([0.0, 4e-9], [0.0, 0.0])
    around = torch.linspace(-1.0, 1.0, 50, dtype=torch.float64).reshape(1, -1, 1)
    with pytest.raises(ValueError, match=r"^context_variance .*eigenvalue of -0\."):
        GaussianProcessOracle(context_variance=1e-18).predict(pair, around)


def test_one_noise_is_the_regression_with_its_variance() -> None:
    task = GaussianProcess(noise=0.1).sample_task(
        3, context_size=(0, 8), num_targets=6, generator=rng()
    )
    oracle, variance = NoisyGaussianProcessOracle(0.1), 0.1**2 + GaussianProcess.jitter
    plain = GaussianProcessOracle(variance_floor=variance, context_variance=variance)
    predictive = oracle.predict(task.context, task.xt)
    assert predictive.num_components == 1
    torch.testing.assert_close(predictive.mean, plain.predict(task.context, task.xt).mean)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target), plain.log_prob(task.context, task.target)
    )


@pytest.mark.parametrize("size", [0, 3, 25])
def test_a_range_of_noise_is_integrated_by_bayes_rule(size: int) -> None:
    prior = GaussianProcess(noise=(0.01, 0.3))
    task = prior.sample_task(2, context_size=size, num_targets=30, generator=rng(size))
    # log p(both) - log p(context) by a dense rule, without the predictive.
    both, nothing = task.context.concat(task.target), PointSet.empty(2)
    u = torch.linspace(0, 1, 2001, dtype=torch.float64)[1::2]
    logs = []
    for variance in (0.01 * 30.0 ** u[::5]).square().tolist():
        plain = GaussianProcessOracle(0.25, variance + 1e-8, variance + 1e-8)
        logs.append([plain.log_prob(nothing, both), plain.log_prob(nothing, task.context)])
    joint, alone = (torch.stack(parts).logsumexp(dim=0) for parts in zip(*logs, strict=True))
    oracle = NoisyGaussianProcessOracle(prior.noise)
    torch.testing.assert_close(
        oracle.log_prob(task.context, task.target), joint - alone, rtol=0, atol=0.05
    )


@pytest.mark.parametrize("size", [0, 25])
def test_the_default_parts_of_a_range_of_noise_are_fine_enough(size: int) -> None:
    prior = GaussianProcess(noise=(0.01, 0.3))
    task = prior.sample_task(1, context_size=size, num_targets=50, generator=rng(size))
    oracle = NoisyGaussianProcessOracle(prior.noise)
    finer = NoisyGaussianProcessOracle(prior.noise, num_nodes=8 * oracle.num_nodes)
    values, exact = (one.log_prob(task.context, task.target) / 50 for one in (oracle, finer))
    torch.testing.assert_close(values, exact, rtol=0, atol=1e-3)


def test_with_noise_repeated_values_are_evidence_and_contradictory_ones_of_noise() -> None:
    context = PointSet(torch.zeros(1, 0, 1), torch.zeros(1, 0, 1))
    x, oracle = torch.zeros(1, 1, 1), NoisyGaussianProcessOracle((0.01, 0.3))
    once, twice, apart = (
        oracle.predict(points([0.0] * len(values), values), x)
        for values in ([0.3], [0.3, 0.3], [0.0, 0.6])
    )
    assert float(twice.variance) < float(once.variance) < float(apart.variance)
    torch.testing.assert_close(twice.mean, apart.mean, rtol=0.2, atol=0.0)
    assert oracle.predict(context, x).variance > 1.0


def test_a_wrong_noise_is_refused() -> None:
    for noise in (0.0, (0.3, 0.01), (0.0, 0.3)):
        with pytest.raises(ValueError, match="noise"):
            NoisyGaussianProcessOracle(noise)
