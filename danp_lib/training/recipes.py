"""The two recipes: the paper's architecture and training, and better ones of both.

What the paper does not say of its training is as in its released code.
"""

from dataclasses import dataclass, replace

import torch

from danp_lib._config import Configuration, Seed, check_choice, checked
from danp_lib.data.generators import PAPER_SUFFIX, PRIORS, TaskGenerator
from danp_lib.data.noising import NoiseSchedule
from danp_lib.models.base import NeuralProcess
from danp_lib.models.convnp import ConvNPConfig, paper_config
from danp_lib.models.danp import DANPConfig
from danp_lib.models.registry import MODELS, check_config
from danp_lib.training.config import TrainingConfig
from danp_lib.training.objective import BatchConfig

PAPER_NOISE: dict[str, tuple[int, float]] = {
    "sawtooth": (3, 0.08526),
    "square": (3, 0.153),
    "square-released": (3, 0.153),
    "gp": (2, 0.2115),
}
"""F and beta of the DANP of each dataset, from Table 2."""

# From Table 2 too, of the noise at level F.
_FINAL_VARIANCE = {"sawtooth": 0.02, "square": 0.06, "square-released": 0.06, "gp": 0.08}

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
MODELS_WITH_RECIPES = ("danp", "convcnp", "convgnp", "ar-convcnp")


@dataclass(frozen=True)
class Recipe:
    """Everything that makes a model."""

    name: str  #: ``"paper"`` or ``"fast"``.
    model: str  #: The kind of model.
    dataset: str  #: The name of its dataset.
    model_config: Configuration  #: Its architecture.
    task_generator: TaskGenerator  #: The prior over functions it is trained on.
    training: TrainingConfig  #: The run.
    num_steps: int | None = None  #: Length of the run, ``None`` where it is the recipe's.
    num_levels: int | None = None  #: F of a DANP, ``None`` where it is Table 2's.

    @property
    def checkpoint_name(self) -> str:
        """The model's name among the pretrained ones, as in ``danp-f2-sawtooth``."""
        part = "" if self.num_levels is None else f"f{self.num_levels}-"
        suffix = PAPER_SUFFIX if self.name == "paper" else ""
        return f"{self.model}-{part}{self.dataset}{suffix}"

    def build_model(self) -> NeuralProcess:
        """A model with fresh weights, the same ones every time."""
        return build_model(self.model, self.model_config, seed=self.training.seed)


def build_model(name: str, config: Configuration, *, seed: int) -> NeuralProcess:
    """A model of :data:`~danp_lib.models.registry.MODELS` with fresh weights of a seed."""
    check_choice("model", name, MODELS)
    check_config(name, config)
    seed = checked(Seed, seed, "seed")
    usual = torch.get_default_dtype()
    # PyTorch's layers draw their weights from the global generator only. torch.manual_seed would
    # seed that of every GPU too, which the fork does not put back.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float32)  # others draw other numbers
        try:
            return MODELS[name](config)
        finally:
            torch.set_default_dtype(usual)


def recipe(
    name: str,
    *,
    model: str,
    dataset: str,
    num_steps: int | None = None,
    num_levels: int | None = None,
    seed: int = 0,
) -> Recipe:
    """A recipe for a model of the paper, on a dataset of :data:`~danp_lib.data.generators.PRIORS`.

    ``"paper"`` is Appendix B.2, 500 epochs of 2**14 tasks, and as in the released code a jitter of
    1e-2 in the first of them and the weights of the best. ``"fast"`` is a U-Net with a
    full-resolution path, Muon, a quadratic schedule, level 0 drawn half of the time, and joint
    Gaussians conditioned on what is known; a run of fewer than 14,000 steps T gets Muon's rate
    times ``sqrt(14,000 / T)``. Noisy datasets have the F and beta of their functions. With another
    F than Table 2's, beta gives the same noise variance at the last level.
    """
    check_choice("recipe", name, RECIPES)
    check_choice("model", model, MODELS_WITH_RECIPES)
    check_choice("dataset", dataset, PRIORS)
    if num_levels is not None and model != "danp":
        raise ValueError(f"num_levels is for a danp: a {model} has no levels.")
    prior = PRIORS[dataset]
    rank = 0 if model in ("convcnp", "ar-convcnp") else 64
    if name == "paper":
        base = paper_config(rank=rank)
    else:
        least, largest = prior.noise_range
        # On waves the network alone cannot tell small noises apart; on Gaussian data it can.
        largest = largest if rank > 0 and dataset == "sawtooth-noisy" else 0.0
        base = ConvNPConfig(
            rank=rank, conditioned=rank > 0, observation_noise=least, largest_noise=largest
        )
    config: ConvNPConfig | DANPConfig = base
    if model == "danp":
        functions = dataset.removesuffix("-noisy")
        check_choice("dataset of a danp", functions, PAPER_NOISE)
        levels, beta = PAPER_NOISE[functions]
        if num_levels == levels:
            num_levels = None
        elif num_levels is not None:
            levels, variance = num_levels, _FINAL_VARIANCE[functions]
            beta = NoiseSchedule.from_final_variance(variance, num_levels=levels).beta
        config = DANPConfig(base=base, num_levels=levels, beta=beta)
    usual = _TRAINING[name].num_steps
    steps = usual if num_steps is None else num_steps
    training = replace(_TRAINING[name], num_steps=steps, seed=seed)
    if model == "ar-convcnp":
        # Rolled out over 50 targets, it meets contexts of up to 30 + 50 points.
        training = replace(training, batch=replace(training.batch, context_size=(0, 80)))
    if name == "fast":
        rate = max(1.0, (usual / steps) ** 0.5) * training.muon_learning_rate
        training = replace(training, muon_learning_rate=rate, jitter_steps=steps // 4)
    chosen = None if steps == usual else steps
    return Recipe(name, model, dataset, config, prior, training, chosen, num_levels)
