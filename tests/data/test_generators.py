"""What every generator keeps, and what each one is."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from randomness import rng
from torch import Tensor

from danp_lib.data.generators import (
    DATASETS,
    GENERATORS,
    NOISY,
    PRIORS,
    GaussianProcess,
    Prior,
    Sawtooth,
    SquareWave,
    dataset_name,
    join_name,
    split_name,
)


def kolmogorov_smirnov(sample: Tensor) -> float:
    """Largest distance between the sample's distribution function and that of U(0, 1)."""
    ordered = sample.flatten().sort().values
    steps = torch.arange(1, len(ordered) + 1) / len(ordered)
    return float((ordered - steps).abs().max())


@dataclass(frozen=True)
class Flat(Prior):
    """A prior that forgot the last dimension."""

    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        return x.sum(dim=-1)


def test_what_a_prior_of_ones_own_gets_wrong_is_named() -> None:
    message = r"^sample_outputs of Flat must return shape \(2, 80, 1\) .*got \(2, 80\)"
    with pytest.raises(ValueError, match=message):
        Flat().sample_task(2, generator=rng())
    with pytest.raises(ValueError, match=r"^generator must be a Generator, got NoneType"):
        Sawtooth().sample_task(2, generator=None)  # type: ignore[arg-type]


class GeneratorContract:
    """Inherited by one test class a generator."""

    make: type[Prior]
    repeat_tolerance = 0.0
    """How far two values at the same input may lie apart."""

    def test_it_is_registered_under_its_name(self) -> None:
        assert GENERATORS[self.make.name] is self.make

    def test_shapes_and_types(self) -> None:
        task = self.make().sample_task(
            3, context_size=(2, 7), num_targets=11, pool_size=5, generator=rng()
        )
        assert task.xc.shape == task.yc.shape == (3, 7, 1)
        assert task.xt.shape == task.yt.shape == (3, 11, 1)
        assert task.pool is not None
        assert task.pool.x.shape == task.pool.y.shape == (3, 5, 1)
        assert task.context.mask.shape == (3, 7)
        assert task.target.mask.all()
        assert {task.xc.dtype, task.yc.dtype, task.yt.dtype, task.pool.y.dtype} == {torch.float32}
        double = self.make().sample_task(1, generator=rng(), dtype=torch.float64)
        assert double.yt.dtype == torch.float64
        assert double.pool is None

    def test_equal_inputs_of_a_task_have_equal_outputs(self) -> None:
        x = self.make().sample_inputs((4, 20), generator=rng())
        y = self.make().sample_outputs(torch.cat([x, x.flip(1)], dim=1), generator=rng(1))
        assert (y[:, :20] - y[:, 20:].flip(1)).abs().max() <= self.repeat_tolerance

    def test_rows_of_a_batch_are_different_functions(self) -> None:
        x = self.make().sample_inputs((1, 50), generator=rng()).expand(6, -1, -1)
        y = self.make().sample_outputs(x, generator=rng(1)).squeeze(-1)
        apart = torch.cdist(y, y) + torch.eye(6)
        assert apart.min() > 0.1

    def test_context_targets_and_pool_are_one_draw(self, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn: list[tuple[Tensor, Tensor]] = []
        original = self.make.sample_outputs

        def spy(self: Any, x: Tensor, *, generator: torch.Generator) -> Tensor:
            drawn.append((x, original(self, x, generator=generator)))
            return drawn[-1][1]

        monkeypatch.setattr(self.make, "sample_outputs", spy)
        task = self.make().sample_task(
            3, context_size=6, num_targets=7, pool_size=8, generator=rng(), dtype=torch.float64
        )
        assert task.pool is not None
        ((x, y),) = drawn
        assert torch.equal(torch.cat([task.xc, task.xt, task.pool.x], dim=1), x)
        assert torch.equal(torch.cat([task.yc, task.yt, task.pool.y], dim=1), y)

    def test_several_sets_of_targets_stand_one_after_another(self) -> None:
        sizes: dict[str, Any] = {"context_size": 2, "pool_size": 3}
        sets = self.make().sample_task(4, **sizes, num_targets=5, num_sets=3, generator=rng())
        one = self.make().sample_task(4, **sizes, num_targets=15, generator=rng())
        assert torch.equal(sets.xt, one.xt)
        assert torch.equal(sets.yt, one.yt)

    def test_context_sizes_are_uniform_on_the_inclusive_range(self) -> None:
        sizes = self.make().sample_task(3100, num_targets=0, generator=rng()).context.sizes
        counts = torch.bincount(sizes, minlength=31)
        assert len(counts) == 31
        # Binomial with mean 100 and standard deviation 9.8.
        assert counts.min() > 100 - 5 * 9.8
        assert counts.max() < 100 + 5 * 9.8

    def test_a_single_context_size_leaves_no_padding(self) -> None:
        task = self.make().sample_task(4, context_size=9, generator=rng())
        assert task.context.mask.all()
        assert task.context.num_points == 9
        empty = self.make().sample_task(4, context_size=0, generator=rng())
        assert empty.context.sizes.tolist() == [0] * 4

    def test_real_points_come_before_padding(self) -> None:
        mask = self.make().sample_task(20, generator=rng()).context.mask
        assert torch.equal(mask, mask.sort(dim=1, descending=True).values)

    def test_inputs_are_uniform_on_the_domain(self) -> None:
        x = self.make(domain=(-1.0, 3.0)).sample_inputs((50, 200), generator=rng())
        assert x.min() >= -1
        assert x.max() <= 3
        assert kolmogorov_smirnov((x + 1) / 4) < 1.95 / 100  # exceeded once in a thousand

    def test_noise_is_the_standard_deviation_of_what_is_observed(self) -> None:
        arguments: dict[str, Any] = {"context_size": 20, "num_targets": 80, "pool_size": 5}
        clean = self.make().sample_task(200, **arguments, generator=rng())
        noisy = self.make(noise=0.3).sample_task(200, **arguments, generator=rng())
        assert clean.pool is not None
        assert noisy.pool is not None
        assert torch.equal(clean.xt, noisy.xt)
        pairs = ((noisy.yc, clean.yc), (noisy.yt, clean.yt), (noisy.pool.y, clean.pool.y))
        for difference in (ours - theirs for ours, theirs in pairs):
            n = difference.numel()
            assert abs(difference.mean()) < 5 * 0.3 / n**0.5
            assert abs(difference.var() / 0.09 - 1) < 5 * (2 / n) ** 0.5

    def test_a_range_of_noise_is_log_uniform_and_all_points_of_a_task_share_one(self) -> None:
        arguments: dict[str, Any] = {"context_size": 60, "num_targets": 60, "pool_size": 60}
        clean = self.make().sample_task(150, **arguments, generator=rng())
        noisy = self.make(noise=(0.01, 0.3)).sample_task(150, **arguments, generator=rng())
        assert self.make(noise=(0.01, 0.3)).noise_range == (0.01, 0.3)
        assert clean.pool is not None
        assert noisy.pool is not None
        pairs = ((noisy.yc, clean.yc), (noisy.yt, clean.yt), (noisy.pool.y, clean.pool.y))
        logs = torch.stack([(ours - theirs).std(dim=1).log().flatten() for ours, theirs in pairs])
        assert (logs - logs.mean(dim=0)).abs().max() < 5 / 120**0.5
        unit = (logs.mean(dim=0) - math.log(0.01)) / math.log(30)
        # Measured to a standard deviation of 0.02; exceeded once in a thousand without that.
        assert kolmogorov_smirnov(unit) < 1.95 / 150**0.5 + 0.02

    def test_the_generator_determines_the_tasks(self) -> None:
        first = self.make().sample_task(4, generator=rng(3))
        again = self.make().sample_task(4, generator=rng(3))
        other = self.make().sample_task(4, generator=rng(4))
        assert torch.equal(first.yt, again.yt)
        assert torch.equal(first.context.mask, again.context.mask)
        assert not torch.equal(first.yt, other.yt)

    def test_the_global_generator_is_left_alone(self) -> None:
        before = torch.get_rng_state()
        self.make(noise=0.1).sample_task(4, pool_size=3, generator=rng())
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ({"noise": -0.1}, "noise"),
            ({"noise": math.nan}, "noise"),
            ({"domain": (2.0, -2.0)}, "domain"),
        ],
    )
    def test_a_wrong_configuration_is_refused(self, arguments: Any, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            self.make(**arguments)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"batch_size": 0},
            {"context_size": -1},
            {"context_size": (5, 2)},
            {"num_targets": -1},
            {"pool_size": -1},
        ],
    )
    def test_a_wrong_size_is_refused_by_name(self, arguments: dict[str, Any]) -> None:
        (name,) = arguments
        with pytest.raises(ValueError, match=name):
            self.make().sample_task(**{"batch_size": 1, **arguments}, generator=rng())


class TestSawtooth(GeneratorContract):
    make = Sawtooth

    def test_values_by_hand(self) -> None:
        x = torch.tensor([-1.0, 0.0, 0.25, 1.0], dtype=torch.float64)
        up = Sawtooth.evaluate(x, *torch.tensor([2.0, 0.6, 1.0]).double())
        down = Sawtooth.evaluate(x, *torch.tensor([2.0, 0.6, -1.0]).double())
        torch.testing.assert_close(up, torch.tensor([0.8, 0.8, 0.3, 0.8]).double())
        torch.testing.assert_close(down, torch.tensor([0.8, 0.8, 0.3, 0.8]).double())
        x = torch.tensor([0.1], dtype=torch.float64)
        torch.testing.assert_close(
            Sawtooth.evaluate(x, *torch.tensor([2.0, 0.6, -1.0]).double()),
            torch.tensor([0.6]).double(),
        )

    def test_parameters_have_the_papers_distributions(self) -> None:
        n = 20_000
        omega, phi, d = Sawtooth().sample_parameters(n, generator=rng())
        assert omega.shape == phi.shape == d.shape == (n, 1, 1)
        assert kolmogorov_smirnov((omega - 2) / 2) < 1.95 / n**0.5
        assert kolmogorov_smirnov((phi - 1 / omega) / (1 - 1 / omega)) < 1.95 / n**0.5
        assert (phi >= 1 / omega).all()
        assert (phi <= 1).all()
        assert sorted(d.unique().tolist()) == [-1.0, 1.0]
        assert abs(d.mean()) < 5 / n**0.5

    def test_outputs_are_the_formula_at_the_inputs_given(self) -> None:
        x = Sawtooth().sample_inputs((5, 40), generator=rng())
        omega, phi, d = Sawtooth().sample_parameters(5, generator=rng(1))
        y = Sawtooth().sample_outputs(x, generator=rng(1))
        expected = (omega * (d * x - phi)) - torch.floor(omega * (d * x - phi))
        torch.testing.assert_close(y, expected, rtol=0, atol=1e-12)
        assert y.min() >= 0
        assert y.max() <= 1

    def test_the_range_of_frequencies_is_an_argument(self) -> None:
        omega, _, _ = Sawtooth(frequency=(5.0, 6.0)).sample_parameters(100, generator=rng())
        assert omega.min() >= 5
        assert omega.max() <= 6


class TestSquareWave(GeneratorContract):
    make = SquareWave

    def test_values_by_hand(self) -> None:
        # With omega 2 and phi 0.6 the wave is 1 on [0.3, 0.8), 0 on [0.8, 1.3), and so on.
        x = torch.tensor([-0.3, 0.2, 0.3, 0.79, 0.81, 1.31]).double()
        y = SquareWave.evaluate(x, *torch.tensor([2.0, 0.6], dtype=torch.float64))
        assert y.tolist() == [1.0, 0.0, 1.0, 1.0, 0.0, 1.0]

    def test_parameters_have_the_papers_distributions(self) -> None:
        n = 20_000
        omega, phi = SquareWave().sample_parameters(n, generator=rng())
        assert kolmogorov_smirnov((omega - 1) / 2) < 1.95 / n**0.5
        assert kolmogorov_smirnov((phi - 1 / omega) / (1 - 1 / omega)) < 1.95 / n**0.5
        assert (phi >= 1 / omega).all()
        assert (phi <= 1).all()

    def test_values_are_zero_and_one_and_constant_over_half_a_period(self) -> None:
        x = torch.linspace(-2, 2, 4001, dtype=torch.float64).reshape(1, -1, 1).expand(20, -1, -1)
        y = SquareWave().sample_outputs(x, generator=rng(2))
        omega, _ = SquareWave().sample_parameters(20, generator=rng(2))
        assert sorted(y.unique().tolist()) == [0.0, 1.0]
        jumps = y.diff(dim=1).abs().sum(dim=1).flatten()
        assert ((jumps - 4 * omega.flatten()).abs() <= 1).all()

    def test_every_wave_is_zero_at_zero(self) -> None:
        # phi lies in (0, 1), so floor(-phi) is -1, which is odd: what the paper's range of phases
        # means for this formula, in which omega does not multiply phi.
        at_zero = SquareWave().sample_outputs(torch.zeros(20_000, 1, 1), generator=rng())
        assert at_zero.abs().max() == 0


@pytest.mark.parametrize("wave", [Sawtooth, SquareWave])
@pytest.mark.parametrize("frequency", [(4.0, 2.0), (0.0, 0.0), (-1.0, 2.0), (math.nan, 2.0)])
def test_frequencies_that_are_no_range_are_refused(
    wave: type[Sawtooth | SquareWave], frequency: tuple[float, float]
) -> None:
    with pytest.raises(ValueError, match=r"^frequency(\[0\])? must be .* got "):
        wave(frequency=frequency)


@pytest.mark.parametrize("wave", [Sawtooth, SquareWave])
def test_waves_have_one_input(wave: type[Sawtooth | SquareWave]) -> None:
    with pytest.raises(ValueError, match=r"^domain must be \(lower, upper\).*one input"):
        wave(domain=((-2.0, 2.0), (-2.0, 2.0)))


class TestGaussianProcess(GeneratorContract):
    make = GaussianProcess
    repeat_tolerance = 6 * math.sqrt(2e-8)  # the jitter is independent at each point

    def test_the_kernel_by_hand(self) -> None:
        gp = GaussianProcess(length_scale=0.5)
        x = torch.tensor([[0.0], [0.5], [2.0]], dtype=torch.float64).reshape(1, 3, 1)
        expected = [math.exp(-0.5 * (distance / 0.5) ** 2) for distance in (0, 0.5, 2.0)]
        torch.testing.assert_close(gp.kernel(x, x)[0, 0], torch.tensor(expected).double())
        assert gp.kernel(x, x[:, :2]).shape == (1, 3, 2)

    def test_the_kernel_takes_two_input_dimensions(self) -> None:
        x = torch.tensor([[[0.0, 0.0], [0.3, 0.4]]], dtype=torch.float64)
        kernel = GaussianProcess(length_scale=0.5).kernel(x, x)
        assert kernel[0, 0, 1].item() == pytest.approx(math.exp(-0.5))

    def test_outputs_have_mean_zero_and_the_kernels_covariance(self) -> None:
        n = 20_000
        x = torch.tensor([-0.1, 0.0, 0.2, 1.0]).double().reshape(1, 4, 1)
        y = GaussianProcess().sample_outputs(x.expand(n, -1, -1), generator=rng()).squeeze(-1)
        kernel = GaussianProcess().kernel(x, x)[0]
        assert (y.mean(dim=0).abs() < 5 / n**0.5).all()
        error = ((1 + kernel.square()) / n).sqrt()
        assert ((y.T.cov() - kernel).abs() < 5 * error).all()

    def test_tasks_of_two_input_dimensions(self) -> None:
        prior = GaussianProcess(length_scale=0.5, domain=((-2.0, 2.0), (0.0, 1.0)))
        task = prior.sample_task(500, context_size=1, num_targets=1, pool_size=3, generator=rng())
        assert task.pool is not None
        for points in (task.context, task.target, task.pool):
            assert points.x.shape[-1] == 2
            assert prior.box.contains(points.x).all()
        # The correlation of two outputs is the kernel: here, of near and of far pairs.
        squared = (task.xc - task.xt).square().sum(dim=-1)
        expected = torch.exp(-squared / (2 * 0.5**2))
        products = (task.yc * task.yt).squeeze(-1)
        near = squared < 0.5**2
        for pairs in (near, ~near):
            n = int(pairs.sum())
            assert abs((products - expected)[pairs].mean()) < 5 * (2 / n) ** 0.5

    def test_two_hundred_inputs_are_not_too_many(self) -> None:
        y = GaussianProcess().sample_task(16, num_targets=200, generator=rng()).yt
        assert y.isfinite().all()

    @pytest.mark.parametrize("name", ["length_scale", "jitter"])
    @pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
    def test_a_kernel_that_is_none_is_refused(self, name: str, value: float) -> None:
        with pytest.raises(ValueError, match=f"^{name} .*{value}"):
            GaussianProcess(**{name: value})  # type: ignore[arg-type]

    def test_a_covariance_without_a_factor_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^jitter .*200.*1e-30"):
            GaussianProcess(jitter=1e-30).sample_task(
                1, context_size=0, num_targets=200, generator=rng()
            )

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
    def test_on_a_gpu_a_function_whose_covariance_has_no_factor_is_nan(self) -> None:
        generator = torch.Generator("cuda").manual_seed(0)
        gp = GaussianProcess(jitter=1e-30)
        x = gp.sample_inputs((2, 200), generator=generator)
        x[1, 1:] = torch.linspace(0.0, 1e4, 199, dtype=x.dtype, device="cuda").unsqueeze(-1)
        y = gp.sample_outputs(x, generator=generator)
        assert y[0].isnan().all()
        assert y[1].isfinite().all()


def test_datasets_are_known_by_their_names_and_by_what_they_are() -> None:
    assert PRIORS == DATASETS | NOISY
    for name, prior in PRIORS.items():
        assert dataset_name(prior) == name
        assert split_name(f"danp-f2-{name}") == ("danp-f2", name)
        assert split_name(f"danp-{name}-paper") == ("danp-paper", name)
        for whole in (f"danp-f2-{name}", f"danp-{name}-paper"):
            assert join_name(*split_name(whole)) == whole
    assert dataset_name(GaussianProcess(length_scale=0.5)) == "gp"
    for name, prior in NOISY.items():
        assert prior.noise == (0.003, 1.0)
        assert type(prior) is type(DATASETS[name.removesuffix("-noisy")])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_size": 3.5}, "context_size must be an integer >= 0 or a list of 2"),
        ({"context_size": (0, 1, 2)}, "context_size must be an integer"),
        ({"num_targets": 2.5}, "num_targets must be an integer, got 2.5"),
        ({"num_sets": 0}, "num_sets must be >= 1, got 0"),
    ],
)
def test_sizes_that_are_none_are_refused(options: dict[str, Any], message: str) -> None:
    generator = rng()
    with pytest.raises(ValueError, match=message):
        Sawtooth().sample_task(2, **options, generator=generator)
    task = Sawtooth().sample_task(2, context_size=[3, 3], generator=generator)  # type: ignore[arg-type]
    assert task.context.sizes.tolist() == [3, 3]


def test_frequencies_without_a_phase_are_refused() -> None:
    with pytest.raises(ValueError, match=r"frequency must be a list of 2 .* with 1 <= lower"):
        Sawtooth(frequency=(0.2, 0.5))


def test_outputs_are_those_at_the_rounded_inputs() -> None:
    seen: list[Tensor] = []

    class Spy(Sawtooth):
        def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
            seen.append(x)
            return super().sample_outputs(x, generator=generator)

    task = Spy().sample_task(2, context_size=3, num_targets=4, generator=rng(0))
    assert task.xt.dtype == torch.float32
    assert torch.equal(seen[0], torch.cat([task.xc, task.xt], dim=1).double())


def test_no_draw_takes_the_global_generator() -> None:
    x, before = torch.zeros(2, 3, 1, dtype=torch.float64), torch.get_rng_state()
    odd: Any = None
    draws = [
        lambda: GaussianProcess().sample_outputs(x, generator=odd),
        lambda: Sawtooth().sample_outputs(x, generator=odd),
        lambda: Sawtooth().sample_inputs((2, 3), generator=odd),
        lambda: Sawtooth(noise=0.1).observe(x, generator=odd),
    ]
    for draw in draws:
        with pytest.raises(ValueError, match=r"^generator must be a Generator, got NoneType"):
            draw()
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_that_are_not_finite_are_named() -> None:
    x = torch.tensor([[[0.0], [math.nan]]])
    with pytest.raises(ValueError, match=r"^x must be finite, got nan\.$"):
        GaussianProcess().sample_outputs(x, generator=torch.Generator())
