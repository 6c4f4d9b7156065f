"""The network, the ConvCNP and the ConvGNP (paper, Appendix B.2)."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from danp_lib._config import (
    Configuration,
    Limit,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check_kind,
)
from danp_lib.data.domain import Bounds, Domain, Grid
from danp_lib.data.noising import MaskedTask
from danp_lib.data.points import PointSet
from danp_lib.distributions.gaussian import VARIANCE_FLOOR, DiagonalNormal, LowRankNormal
from danp_lib.models.base import NeuralProcess
from danp_lib.models.conditioning import KNOWN_VARIANCE, MAX_CHI_SQUARE, condition
from danp_lib.models.contexts import log_density_per_point
from danp_lib.models.noise import NoiseBelief
from danp_lib.nn.setconv import SetConvDecoder, SetConvEncoder
from danp_lib.nn.unet import UNETS


@dataclass(frozen=True)
class ConvNPConfig(Configuration):
    r"""The architecture of a convolutional neural process.

    The head's outputs become the predictive as :math:`v = 10^{-6} +
    \operatorname{softplus}(g z + o)` for the diagonal variance, with gain g and offset o, and
    :math:`W = z / c` for the factor, with divisor c.
    """

    #: Box that every input must lie in, (lower, upper) or such a pair for each of several
    #: dimensions; the grid covers it.
    domain: Bounds = (-2.0, 2.0)
    points_per_unit: PositiveInt = 64  #: Grid points per unit of x.
    margin: NonNegativeFloat = 0.1  #: Least distance by which the grid reaches past the domain.
    unet: Literal["paper", "full-resolution"] = "full-resolution"  #: See :mod:`danp_lib.nn.unet`.
    channels: PositiveInt = 64  #: Channels of every layer of the U-Net.
    num_layers: PositiveInt = 6  #: Number of halvings of the U-Net.
    #: Odd size of its kernels.
    kernel_size: Annotated[PositiveInt, Limit("and odd", lambda value: value % 2 == 1)] = 5
    rank: NonNegativeInt = 64  #: Columns of the low-rank factor; 0 for independent outputs.
    variance_gain: PositiveFloat = 5.0  #: The gain g.
    variance_offset: float = -4.0  #: The offset o.
    factor_divisor: PositiveFloat = 8.0  #: The divisor c.
    #: Number of hidden layers between the SetConv to the targets and the outputs, which can make
    #: the jump of a wave that the SetConv blurs.
    head_layers: NonNegativeInt = 2
    head_channels: PositiveInt = 128  #: Units of each.
    #: Whether the joint Gaussian is evaluated at the context's inputs too and conditioned on the
    #: outputs there (:func:`~danp_lib.models.conditioning.condition`). The clean level of a DANP is
    #: conditioned on the noisy sets as well; noisy levels are not.
    conditioned: bool = False
    #: Least standard deviation of the noise of the data. Its square is the least independent
    #: variance of an output, predicted or known; the rest is learned. With 0, known values are
    #: taken as exact.
    observation_noise: NonNegativeFloat = 0.0
    #: Largest standard deviation of the noise, where it varies from task to task. Then what the
    #: context says of the noise (:mod:`~danp_lib.models.noise`) is added to an output 0 free of it,
    #: and a DANP weights its samples by the context
    #: (:meth:`~danp_lib.models.danp.AuxiliarySamples.log_weight`). With 0, the head learns it.
    largest_noise: NonNegativeFloat = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.conditioned and not self.rank:
            raise ValueError(
                "conditioned must be false where rank is 0: independent outputs say nothing of "
                "each other."
            )
        if self.largest_noise and not (
            0.0 < self.observation_noise <= self.largest_noise and self.conditioned
        ):
            raise ValueError(
                "largest_noise must be 0, or at least an observation_noise above 0 with a "
                f"conditioned model, got {self.largest_noise} with "
                f"observation_noise={self.observation_noise} and conditioned={self.conditioned}."
            )
        box = self.grid.domain
        farthest = max(map(abs, (*box.lower, *box.upper)))
        # Between two grid points at the far end there must be 16 float32 values or more.
        limit = 1.0 / (16 * torch.finfo(torch.float32).eps * self.points_per_unit)
        if not farthest <= limit:
            raise ValueError(
                f"domain must lie within {limit:g} of 0 at {self.points_per_unit} points per unit, "
                f"for float32 to resolve inputs between the grid's points, got {self.domain}; "
                "shift or rescale the inputs."
            )

    @property
    def grid(self) -> Grid:
        """The grid of the model."""
        domain = Domain.of(self.domain)
        return Grid(domain, self.points_per_unit, self.margin, 2**self.num_layers)


def paper_config(*, rank: int = 64) -> ConvNPConfig:
    """The architecture that the paper used: rank 64 for ConvGNP and DANP, 0 for the ConvCNP."""
    return ConvNPConfig(
        unet="paper",
        rank=rank,
        variance_gain=1.0,
        variance_offset=0.0,
        factor_divisor=float(max(rank, 1)),
        head_layers=0,
    )


class ConvNPCore(nn.Module):
    """SetConv, U-Net, SetConv and head, with a channel for each set and a head for each output.

    There are ``num_sets`` of either: 1 for the baselines, F + 1 for a DANP.
    """

    grid: Tensor

    def __init__(self, config: ConvNPConfig, num_sets: int) -> None:
        super().__init__()
        if config.grid.domain.dim_x != 1:
            raise ValueError(
                "domain must have one dimension, as the U-Net has, got "
                f"{config.grid.domain}; a U-Net of several dimensions is not there yet."
            )
        self.config = config
        self.num_sets = num_sets
        scale = 1.0 / config.points_per_unit
        self.encoder = SetConvEncoder(num_sets, scale)
        outputs = num_sets * (2 + config.rank)
        # With no hidden layer, the U-Net of independent outputs ends in the two numbers itself.
        fused = config.head_layers == 0 and outputs <= config.channels
        fused &= config.largest_noise == 0.0  # what infers the noise reads all channels
        self.unet = UNETS[config.unet](
            2 * num_sets,
            outputs if fused else config.channels,
            channels=config.channels,
            num_layers=config.num_layers,
            kernel_size=config.kernel_size,
        )
        self.decoder = SetConvDecoder(scale)
        widths = [config.channels] + [config.head_channels] * config.head_layers
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.head = None if fused else nn.Linear(widths[-1], outputs)
        if config.largest_noise > 0.0:
            self.noise_slope = nn.Linear(widths[-1], 1)
            self.noise_prior = nn.Linear(widths[-1], 2)
        self.register_buffer("grid", config.grid.points(), persistent=False)
        self.float()  # whatever PyTorch's default type is

    def forward(self, sets: Sequence[PointSet], xt: Tensor, index: int | Tensor) -> LowRankNormal:
        """The predictive of one output, without checks; see :meth:`predictive`."""
        return self.predictive(self.features(self.encode(sets)), sets, xt, index)

    def encode(self, sets: Sequence[PointSet]) -> Tensor:
        """Encode one batch of sets a channel, ``(batch, 2 * num_sets, grid)``."""
        parts = [self.encode_set(points, i) for i, points in enumerate(sets)]
        return torch.cat(torch.broadcast_tensors(*parts), dim=1)

    def encode_set(self, points: PointSet, index: int) -> Tensor:
        """Density and data channel of one batch of sets, ``(batch, 2, grid)``."""
        return self.encoder(points, self.grid, index)

    def features(self, encoding: Tensor) -> Tensor:
        """One pass of the U-Net but for its last layer, ``(batch, channels, grid)``."""
        return self.unet(encoding)

    def predictive(
        self, features: Tensor, sets: Sequence[PointSet], xt: Tensor, index: int | Tensor
    ) -> LowRankNormal:
        """The predictive of one output; output 0 is conditioned if the configuration says so.

        Args:
            features: ``(batch or 1, channels, grid)``.
            sets: Known values of each output, as they were encoded, ``(batch or 1,)`` each.
            xt: Target inputs, ``(batch or 1, targets, dim_x)``.
            index: Which output, one for the batch or one per row, ``(batch,)``.
        """
        is_noisy = isinstance(index, int) and index > 0
        if not self.config.conditioned or is_noisy:
            return self.decode(features, xt, index)
        given = [(i, points) for i, points in enumerate(sets) if points.num_points > 0]
        xs = [xt, *(points.blanked().x for _, points in given)]
        # One call for all inputs is faster than one per set; what all rows share stays shared.
        parts_of: dict[int, Iterator[Tensor]] = {}
        for batch in {len(x) for x in xs}:
            same = [x for x in xs if len(x) == batch]
            hidden = self._hidden(features, torch.cat(same, dim=1))
            parts_of[batch] = iter(hidden.split([x.shape[1] for x in same], dim=1))
        z, *parts = [next(parts_of[len(x)]) for x in xs]
        known = []
        for (i, points), part in zip(given, parts, strict=True):
            if not isinstance(index, int):
                points = points.expand(len(index)).masked_where(index == 0)
            known.append((self._output(part, i, KNOWN_VARIANCE), points))
        target = self._output(z, index)
        if self.config.largest_noise > 0.0:
            belief = self._guess_noise(parts, [points for _, points in known])
            if given and given[0][0] == 0:
                (free, context), slope = known[0], self._slope(parts[0])
                belief = belief.given(free, slope, context)
                known[0] = (belief.observed(free, slope), context)
            observed = belief.observed(target, self._slope(z))
            if isinstance(index, int):
                target = observed
            else:  # the other outputs have learned their noise with the rest of their variance
                is_clean = (index == 0)[:, None, None]
                diagonal = torch.where(is_clean, observed.cov_diag, target.cov_diag)
                target = LowRankNormal(observed.loc, observed.cov_factor, diagonal)
        return condition(target, known, max_chi_square=MAX_CHI_SQUARE)

    def _guess_noise(self, hidden: Sequence[Tensor], known: Sequence[PointSet]) -> NoiseBelief:
        """The network's guess of the noise: a mean over all points that it is given."""
        total = count = torch.zeros(1, 1, dtype=torch.float64, device=self.grid.device)
        for part, points in zip(hidden, known, strict=True):
            real = points.mask.unsqueeze(-1).double()
            total = total + (self.noise_prior(part).double() * real).sum(dim=1)
            count = count + real.sum(dim=1)
        mean, raw = (total.expand(-1, 2) / count.clamp(min=1.0)).split(1, dim=1)
        precision = F.softplus(raw) * (count > 0)
        least, largest = self.config.observation_noise, self.config.largest_noise
        # Outputs of order one then reach the ends of a range of 1:30, which are at 1.7.
        return NoiseBelief.guess(least, largest, mean=2.0 * mean, precision=precision)

    def at_context(self, features: Tensor, context: PointSet) -> LowRankNormal:
        """Output 0 at the inputs of the context, as it is observed, before any conditioning."""
        hidden = self._hidden(features, context.blanked().x)
        own = self._output(hidden, 0)
        if self.config.largest_noise == 0.0:
            return own
        slope, guess = self._slope(hidden), self._guess_noise([hidden], [context])
        return guess.given(own, slope, context).observed(own, slope)

    def _slope(self, hidden: Tensor) -> Tensor:
        """How fast the variance of output 0 rises with the noise, ``(batch, points, 1)``."""
        return self.noise_slope(hidden).double().sigmoid()

    def decode(self, features: Tensor, xt: Tensor, index: int | Tensor) -> LowRankNormal:
        """The Gaussian of one output before any conditioning; see :meth:`predictive`."""
        return self._output(self._hidden(features, xt), index)

    def _hidden(self, features: Tensor, x: Tensor) -> Tensor:
        layers = [layer for layer in self.hidden if isinstance(layer, nn.Linear)]
        z = self.decoder(features, self.grid, x, self.unet.out, *layers[:1])
        for layer in layers[1:]:
            z = F.linear(F.gelu(z), layer.weight, layer.bias)
        return F.gelu(z) if layers else z

    def _output(
        self, z: Tensor, index: int | Tensor, floor: float = VARIANCE_FLOOR
    ) -> LowRankNormal:
        outputs = 2 + self.config.rank
        if self.head is None:
            z = z.unflatten(-1, (self.num_sets, outputs))
            rows = slice(None) if isinstance(index, int) else torch.arange(len(z), device=z.device)
            z = z[rows, :, index]
        else:
            weight, bias = (
                p.unflatten(0, (self.num_sets, outputs)) for p in (self.head.weight, self.head.bias)
            )
            if isinstance(index, int):
                z = F.linear(z, weight[index], bias[index])
            else:
                # Select by a product with zeros and ones: the gradient of indexing is slow.
                sets = torch.arange(self.num_sets, device=index.device)
                chosen = (index.unsqueeze(1) == sets).to(z.dtype)
                weight = (chosen @ weight.flatten(1)).unflatten(1, weight.shape[1:])
                z = torch.baddbmm((chosen @ bias).unsqueeze(1), z, weight.mT)
        mean, raw, factor = z.double().split([1, 1, self.config.rank], dim=-1)
        raw = self.config.variance_gain * raw + self.config.variance_offset
        # What is known of the noise of output 0 is added later, and is never below the least.
        least = 0.0 if self.config.largest_noise else self.config.observation_noise
        variance = max(floor, least**2) + F.softplus(raw)
        if self.config.rank == 0:
            return DiagonalNormal(mean, variance)
        return LowRankNormal(mean, factor / self.config.factor_divisor, variance)


class ConvNeuralProcess(NeuralProcess):
    """A model whose network is :class:`ConvNPCore`."""

    core: ConvNPCore  #: The network, with a set and an output for each level.

    @property
    def num_levels(self) -> int:
        """See the base class."""
        return self.core.num_sets - 1

    @property
    def domain(self) -> Domain:
        """See the base class."""
        return self.core.config.grid.domain

    @property
    def grid_spacing(self) -> float:
        """See the base class."""
        return 1.0 / self.core.config.points_per_unit

    def level_predictive(self, batch: MaskedTask) -> LowRankNormal:
        """See the base class."""
        auxiliary = batch.auxiliary
        if isinstance(batch.level, int):
            # Compiled code can see that a set has no points, but not that all of them are masked.
            auxiliary = tuple(
                points if f > batch.level else PointSet(points.x[:, :0], points.y[:, :0])
                for f, points in enumerate(auxiliary, start=1)
            )
        return self.core([batch.context, *auxiliary], batch.target.x, batch.level)


class ConvNP(ConvNeuralProcess):
    """A convolutional neural process with one context set and one output."""

    def __init__(self, config: ConvNPConfig) -> None:
        super().__init__()
        self.config = config
        self.core = ConvNPCore(config, num_sets=1)

    def forward(self, context: PointSet, xt: Tensor) -> LowRankNormal:
        """The predictive at the targets ``(batch, targets, dim_x)``."""
        self.check({"context": context}, xt=xt)
        return self.core([context], xt, 0)

    def predict(
        self,
        context: PointSet,
        xt: Tensor,
        *,
        num_samples: int = 256,
        generator: torch.Generator | None = None,
        chunk_size: int = 256,
    ) -> LowRankNormal:
        """:meth:`forward` without gradients; nothing is sampled, whatever the other arguments."""
        with torch.no_grad():
            predictive: LowRankNormal = self(context, xt)
        self.check_context(context)
        return predictive

    @torch.no_grad()
    def context_log_density(self, context: PointSet) -> Tensor:
        """See the base class: one pass."""
        features = self.core.features(self.core.encode([context]))
        return log_density_per_point(self.core.at_context(features, context), context)


class ConvCNP(ConvNP):
    """A ConvNP whose outputs are independent given the context (Gordon et al., 2020)."""

    name = "convcnp"

    def __init__(self, config: ConvNPConfig = ConvNPConfig(rank=0)) -> None:
        check_kind(ConvNPConfig, config=config)
        if config.rank != 0:
            raise ValueError(
                f"a ConvCNP has independent outputs: rank must be 0, got {config.rank}; "
                "for correlated ones use ConvGNP."
            )
        super().__init__(config)


class ARConvCNP(ConvCNP):
    """A ConvCNP whose joint density and joint samples are those of a rollout.

    It is trained on contexts of up to 80 points: the 30 of the largest context and the 50 targets
    that the rollout adds (paper, Appendix B.1). Its :meth:`predict` is that of a ConvCNP.
    """

    name = "ar-convcnp"
    autoregressive = True


class ConvGNP(ConvNP):
    """A ConvNP whose outputs are jointly Gaussian, of low-rank covariance (Markou et al., 2022)."""

    name = "convgnp"

    def __init__(self, config: ConvNPConfig = ConvNPConfig()) -> None:
        check_kind(ConvNPConfig, config=config)
        if config.rank == 0:
            raise ValueError(
                "a ConvGNP has correlated outputs: rank must be >= 1, got 0; "
                "for independent ones use ConvCNP."
            )
        super().__init__(config)


def count_parameters(model: nn.Module) -> int:
    """Number of scalars that training changes."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
