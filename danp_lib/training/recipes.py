"""The two recipes: the paper's to the letter, and a better one for the same models and data."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from danp_lib._config import PositiveInt, checked
from danp_lib.data.generators import PAPER_SUFFIX, PRIORS, TaskGenerator
from danp_lib.data.noising import NoiseSchedule
from danp_lib.models.convnp import ConvNPConfig, NeuralProcess, paper_config
from danp_lib.models.danp import DANPConfig
from danp_lib.models.registry import MODELS, config_class
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

_FINDS_OUT_NOISE = ("sawtooth-noisy",)
"""Where the network alone cannot tell small noises apart; on Gaussian data it can."""

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
        validate_every=_EPOCH,
        num_validation_batches=64,
        keep_best=True,
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
    """Everything that makes a model."""

    name: str  #: ``"paper"`` or ``"fast"``.
    model: str  #: The kind of model.
    dataset: str  #: The name of its dataset.
    model_config: ConvNPConfig | DANPConfig  #: Its architecture.
    task_generator: TaskGenerator  #: The prior over functions it is trained on.
    training: TrainingConfig  #: The run.
    #: Length of the run where it was chosen, ``None`` where it is the recipe's.
    num_steps: int | None = None
    num_levels: int | None = None  #: Likewise F of a DANP, ``None`` where it is Table 2's.

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
    """A model of :data:`~danp_lib.models.registry.MODELS` with fresh weights of a seed."""
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
    """A recipe for a model of the paper, of a dataset of :data:`~danp_lib.data.generators.PRIORS`.

    ``"paper"`` is Appendix B.2, 500 epochs of 2**14 tasks, and as in the released code the weights
    of the best of them. ``"fast"`` is a U-Net with a
    full-resolution path, Muon, a quadratic schedule, level 0 drawn half of the time, and joint
    Gaussians conditioned on what is known; a run of fewer than 14,000 steps gets a larger rate of
    Muon, as the root of their number. Noisy datasets have the F and beta of their functions.
    With ``num_levels``, F is not Table 2's, and beta is the one that gives the same noise variance
    at the last level.
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
    fast = ConvNPConfig(
        rank=rank,
        conditioned=rank > 0,
        observation_noise=prior.least_noise,
        largest_noise=prior.largest_noise if rank > 0 and dataset in _FINDS_OUT_NOISE else 0.0,
    )
    base = paper_config(rank=rank) if name == "paper" else fast
    config: ConvNPConfig | DANPConfig = base
    if model == "danp":
        functions = dataset.removesuffix("-noisy")
        levels, beta = PAPER_NOISE[functions]
        if num_levels is None or num_levels == levels:
            num_levels = None
        else:
            levels, variance = num_levels, _FINAL_VARIANCE[functions]
            beta = NoiseSchedule.from_final_variance(variance, num_levels=levels).beta
        config = DANPConfig(base=base, num_levels=levels, beta=beta)
    training = _TRAINING[name]
    # Rolled out over 50 targets, an AR ConvCNP meets contexts of up to 30 + 50 points.
    context_size = (0, 80) if model == "ar-convcnp" else (0, 30)
    steps = (
        training.num_steps if num_steps is None else checked(PositiveInt, num_steps, "num_steps")
    )
    num_steps = None if steps == training.num_steps else steps
    falls = training.jitter_schedule == "geometric"
    short = max(1.0, (training.num_steps / steps) ** 0.5) if training.optimizer == "muon" else 1.0
    training = replace(
        training,
        num_steps=steps,
        muon_learning_rate=short * training.muon_learning_rate,
        batch=replace(training.batch, context_size=context_size),
        jitter_steps=steps // 4 if falls else training.jitter_steps,
        seed=seed,
    )
    return Recipe(name, model, dataset, config, prior, training, num_steps, num_levels)
