"""The two recipes: the paper's to the letter, and a better one for the same models and data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from danp_lib.data.generators import PAPER_SUFFIX, PRIORS, TaskGenerator
from danp_lib.data.noising import NoiseSchedule
from danp_lib.models.convnp import ConvNPConfig, NeuralProcess, paper_config
from danp_lib.models.danp import DANPConfig
from danp_lib.models.registry import MODELS as MODELS
from danp_lib.models.registry import config_class
from danp_lib.training.objective import BatchConfig
from danp_lib.training.resume import TrainingConfig

PAPER_NOISE: dict[str, tuple[int, float]] = {
    "sawtooth": (3, 0.08526),
    "square": (3, 0.153),
    "square-released": (3, 0.153),
    "gp": (2, 0.2115),
}
"""F and beta of the DANP of each dataset, from Table 2."""

_FINAL_VARIANCE = {"sawtooth": 0.02, "square": 0.06, "square-released": 0.06, "gp": 0.08}

_NOISE_FROM_RESIDUALS = ("sawtooth-noisy",)
"""Where the network by itself cannot tell small noises apart: see the chapter on your own data."""

_EPOCH = 2**14 // 16
_TRAINING = {
    "paper": TrainingConfig(
        num_steps=500 * _EPOCH,
        optimizer="adam",
        learning_rate=3e-4,
        schedule="constant",
        warmup_steps=0,
        gradient_clip=None,
        jitter=1e-2,
        jitter_steps=_EPOCH,
        log_every=_EPOCH,
        validate_every=4 * _EPOCH,
    ),
    "fast": TrainingConfig(
        num_steps=14_000,
        schedule="quadratic",
        batch=BatchConfig(clean_fraction=0.5),
        jitter=1e-2,
        jitter_schedule="geometric",
        robust_threshold=-2.0,
        muon_weight_decay=0.1,
    ),
}
RECIPES = tuple(_TRAINING)


@dataclass(frozen=True)
class Recipe:
    """Everything that makes a model.

    Attributes:
        name: ``"paper"`` or ``"fast"``.
        model: The kind of model.
        dataset: The name of its dataset.
        model_config: Its architecture.
        task_generator: The prior over functions it is trained on.
        training: The run.
        num_steps: Length of the run where it was chosen, ``None`` where it is the recipe's.
        num_levels: Likewise F of a DANP, ``None`` where it is Table 2's.
    """

    name: str
    model: str
    dataset: str
    model_config: ConvNPConfig | DANPConfig
    task_generator: TaskGenerator
    training: TrainingConfig
    num_steps: int | None = None
    num_levels: int | None = None

    @property
    def checkpoint_name(self) -> str:
        """The model's name among the pretrained ones, as in ``danp-f2-sawtooth``."""
        part = "" if self.num_levels is None else f"f{self.num_levels}-"
        suffix = PAPER_SUFFIX if self.name == "paper" else ""
        return f"{self.model}-{part}{self.dataset}{suffix}"

    def build_model(self) -> NeuralProcess:
        """A model with fresh weights, the same ones every time."""
        return build_model(self.model, self.model_config, seed=self.training.seed)


def build_model(name: str, config: ConvNPConfig | DANPConfig, *, seed: int) -> NeuralProcess:
    """A model with fresh weights.

    Args:
        name: One of :data:`~danp_lib.models.registry.MODELS`.
        config: Its configuration, a :class:`DANPConfig` for a DANP.
        seed: Of the weights.

    Raises:
        ValueError: If there is no such model, or the configuration is another's.
    """
    if name not in MODELS:
        raise ValueError(f"model must be one of {', '.join(MODELS)}, got {name!r}.")
    expected = config_class(name)
    if not isinstance(config, expected):
        raise ValueError(f"config of a {name} must be a {expected.__name__}, got {config!r}.")
    # PyTorch's layers draw their weights from the global generator only. torch.manual_seed would
    # seed that of every GPU too, which the fork does not put back.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return MODELS[name](config)


def recipe(
    name: str,
    *,
    model: str,
    dataset: str,
    num_steps: int | None = None,
    num_levels: int | None = None,
    seed: int = 0,
) -> Recipe:
    """A recipe for a model of the paper.

    Args:
        name: ``"paper"``: Appendix B.2, 500 epochs of 2**14 tasks. ``"fast"``: a U-Net with a
            full-resolution path, Muon, a quadratic schedule, level 0 drawn half of the time, and
            joint Gaussians conditioned on what is known.
        model: ``"danp"``, ``"convcnp"``, ``"convgnp"`` or ``"ar-convcnp"``.
        dataset: A name in :data:`~danp_lib.data.generators.PRIORS`; a noisy one has the F and beta
            of its functions.
        num_steps: Length of the run, where it is not to be the recipe's.
        num_levels: F of a DANP, where it is not to be Table 2's. Then beta is the one that gives
            the same noise variance at the last level.
        seed: Of weights and tasks.

    Raises:
        ValueError: If a name is unknown, or a baseline is given levels.
    """
    for what, value, known in (
        ("recipe", name, RECIPES),
        ("model", model, tuple(MODELS)),
        ("dataset", dataset, tuple(PRIORS)),
    ):
        if value not in known:
            hint = "; data of your own are for Python, see the book" if what == "dataset" else ""
            raise ValueError(f"{what} must be one of {', '.join(known)}, got {value!r}{hint}.")
    if num_levels is not None and model != "danp":
        raise ValueError(f"num_levels is for a danp: a {model} has no levels.")
    prior = PRIORS[dataset]
    rank = 0 if model in ("convcnp", "ar-convcnp") else 64
    fast = ConvNPConfig(rank=rank, conditioned=rank > 0, observation_noise=prior.least_noise)
    if rank > 0 and dataset in _NOISE_FROM_RESIDUALS:
        fast = replace(fast, largest_noise=prior.largest_noise)
    base = paper_config(rank=rank) if name == "paper" else fast
    config: ConvNPConfig | DANPConfig = base
    if model == "danp":
        functions = dataset.removesuffix("-noisy")
        levels, beta = PAPER_NOISE[functions]
        num_levels = None if num_levels == levels else num_levels
        if num_levels is not None:
            variance = _FINAL_VARIANCE[functions]
            beta = NoiseSchedule.from_final_variance(variance, num_levels=num_levels).beta
            levels = num_levels
        config = DANPConfig(base=base, num_levels=levels, beta=beta)
    training = _TRAINING[name]
    # Rolled out over 50 targets, an AR ConvCNP meets contexts of up to 30 + 50 points.
    context_size = (0, 80) if model == "ar-convcnp" else (0, 30)
    steps = training.num_steps if num_steps is None else num_steps
    falls = training.jitter_schedule == "geometric"
    training = replace(
        training,
        num_steps=steps,
        batch=replace(training.batch, context_size=context_size),
        jitter_steps=steps // 4 if falls else training.jitter_steps,
        seed=seed,
    )
    num_steps = None if num_steps == _TRAINING[name].num_steps else num_steps
    return Recipe(name, model, dataset, config, prior, training, num_steps, num_levels)
