"""The recipes: what the paper's appendix says, and that both build the same models every time."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from danp_lib.data.generators import NOISY, PRIORS, Sawtooth
from danp_lib.data.noising import NoiseSchedule
from danp_lib.models.convnp import ConvNPConfig, paper_config
from danp_lib.models.danp import DANPConfig
from danp_lib.models.registry import MODELS
from danp_lib.storage.card import read_card
from danp_lib.storage.checkpoint import read_header
from danp_lib.storage.pretrained import PRETRAINED
from danp_lib.training.config import TrainingConfig
from danp_lib.training.recipes import MODELS_WITH_RECIPES, RECIPES, build_model, recipe

SHIPPED = sorted((Path(__file__).parents[2] / "checkpoints").glob("*.safetensors"))


@pytest.mark.parametrize(
    ("dataset", "num_levels", "beta"),
    [
        ("sawtooth", 3, 0.08526),
        ("square", 3, 0.153),
        ("square-released", 3, 0.153),
        ("gp", 2, 0.2115),
    ],
)
def test_the_paper_recipe_is_its_appendix(dataset: str, num_levels: int, beta: float) -> None:
    made = recipe("paper", model="danp", dataset=dataset)
    assert isinstance(made.model_config, DANPConfig)
    assert (made.model_config.num_levels, made.model_config.beta) == (num_levels, beta)
    assert made.model_config.base == paper_config()
    for model, rank in (("convcnp", 0), ("ar-convcnp", 0), ("convgnp", 64)):
        assert recipe("paper", model=model, dataset=dataset).model_config == paper_config(rank=rank)
    run = made.training
    assert run.num_steps * run.batch.batch_size == 500 * 2**14
    assert (run.optimizer, run.learning_rate, run.schedule) == ("adam", 3e-4, "constant")
    assert (run.batch.batch_size, run.batch.context_size, run.batch.num_targets) == (
        16,
        (0, 30),
        50,
    )
    assert run.batch.clean_fraction is None
    assert (run.jitter, run.jitter_steps) == (1e-2, 1024)
    # As in the released code: 2**12 tasks after every epoch.
    assert run.keep_best
    assert run.validate_every * run.batch.batch_size == 2**14
    num_tasks = (num_levels + 1) * run.num_validation_batches * run.batch.batch_size
    assert num_tasks == (2**12 if num_levels == 3 else 3 * 2**10)


@pytest.mark.parametrize("num_steps", [14_000, 500])
def test_the_fast_recipe_lets_the_jitter_fall_over_the_first_quarter(num_steps: int) -> None:
    run = recipe("fast", model="danp", dataset="square", num_steps=num_steps).training
    assert run.jitter_steps == num_steps // 4
    assert recipe("paper", model="danp", dataset="gp", num_steps=9).training.jitter_steps == 1024


@pytest.mark.parametrize(("num_steps", "rate"), [(40_000, 0.01), (14_000, 0.01), (3_500, 0.02)])
def test_short_runs_of_the_fast_recipe_have_a_larger_rate(num_steps: int, rate: float) -> None:
    run = recipe("fast", model="danp", dataset="square", num_steps=num_steps).training
    assert run.muon_learning_rate == pytest.approx(rate)
    paper = recipe("paper", model="danp", dataset="square", num_steps=num_steps).training
    assert paper.learning_rate == 3e-4


def test_there_are_weights_of_the_fast_recipe() -> None:
    assert "fast" in {read_card(path).recipe for path in SHIPPED}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_shipped_weights_are_what_the_recipe_makes(path: Path) -> None:
    """Who trains a model again by its card has the same run: its steps and everything else."""
    card, header = read_card(path), read_header(path)
    levels = header.config.num_levels if isinstance(header.config, DANPConfig) else None
    chosen = re.search(r"--steps (\d+)", PRETRAINED[path.stem])
    made = recipe(
        card.recipe,
        model=card.model,
        dataset=card.dataset,
        num_steps=int(chosen[1]) if chosen else None,
        num_levels=levels,
        seed=card.seed,
    )
    assert made.training.num_steps == card.steps
    assert made.checkpoint_name.startswith(f"{card.model}-")
    assert card.noise == made.task_generator.noise
    stored = TrainingConfig.from_provenance(header.provenance["training"])
    assert made.training == stored
    assert made.model_config == header.config
    assert made.task_generator == header.task_generator


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("model", MODELS_WITH_RECIPES)
def test_all_models_of_a_recipe_get_the_same_budget(name: str, model: str) -> None:
    run = recipe(name, model=model, dataset="square").training
    reference = recipe(name, model="danp", dataset="sawtooth").training
    assert run.batch.context_size == ((0, 80) if model == "ar-convcnp" else (0, 30))
    for field in ("num_steps", "optimizer", "learning_rate", "schedule", "warmup_steps"):
        assert getattr(run, field) == getattr(reference, field)
    assert run.batch.batch_size == reference.batch.batch_size


def test_other_levels_keep_the_final_noise_variance() -> None:
    config = recipe("fast", model="danp", dataset="square", num_levels=2).model_config
    assert isinstance(config, DANPConfig)
    assert NoiseSchedule(config.beta, 2).variance(2) == pytest.approx(0.06, rel=1e-12)
    same = recipe("fast", model="danp", dataset="square", num_levels=3).model_config
    assert isinstance(same, DANPConfig)
    assert same.beta == 0.153


@pytest.mark.parametrize("dataset", NOISY)
def test_noisy_data_have_the_levels_of_their_functions_and_a_least_noise(dataset: str) -> None:
    noisy = recipe("fast", model="danp", dataset=dataset)
    clean = recipe("fast", model="danp", dataset=dataset.removesuffix("-noisy"))
    assert noisy.checkpoint_name == f"danp-{dataset}"
    assert isinstance(noisy.model_config, DANPConfig)
    base = replace(noisy.model_config.base, observation_noise=0.0, largest_noise=0.0)
    assert noisy.model_config.base.observation_noise == 0.003
    assert noisy.model_config.base.largest_noise == (1.0 if dataset == "sawtooth-noisy" else 0.0)
    assert replace(noisy.model_config, base=base) == clean.model_config
    assert noisy.task_generator == replace(clean.task_generator, noise=(0.003, 1.0))
    assert noisy.training == clean.training
    fewer = recipe("fast", model="danp", dataset=dataset, num_levels=1).model_config
    assert isinstance(fewer, DANPConfig)
    assert fewer.num_levels == 1


def test_a_seed_gives_the_same_weights_and_leaves_the_global_generator_alone() -> None:
    config = ConvNPConfig(points_per_unit=16, channels=8, num_layers=3, rank=0)
    before = torch.get_rng_state()
    first, second = (build_model("ar-convcnp", config, seed=3).state_dict() for _ in range(2))
    other = build_model("ar-convcnp", config, seed=4).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(first["core.unet.stem.weight"], other["core.unet.stem.weight"])


def test_weights_do_not_depend_on_the_default_dtype() -> None:
    config = ConvNPConfig(channels=8, num_layers=2, rank=2)
    usual = build_model("convgnp", config, seed=3).state_dict()
    torch.set_default_dtype(torch.float64)
    try:
        other = build_model("convgnp", config, seed=3).state_dict()
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(usual[key], value) for key, value in other.items())


def test_a_seed_may_be_numpys() -> None:
    one, other = (build_model("convgnp", ConvNPConfig(rank=2), seed=s) for s in (3, np.int64(3)))  # type: ignore[arg-type]
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("seed", [1.5, None, 2**70])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"^seed must be an integer from -2\*\*63"):
        build_model("convgnp", ConvNPConfig(), seed=seed)


def test_the_global_generator_of_a_gpu_is_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    monkeypatch.setattr(torch.cuda, "manual_seed", seeded.append)
    recipe("paper", model="convcnp", dataset="gp", seed=5).build_model()
    assert seeded == []


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("slow", {"model": "danp", "dataset": "gp"}, "^recipe .*'slow'"),
        ("fast", {"model": "gan", "dataset": "gp"}, "^model .*'gan'"),
        ("fast", {"model": "danp", "dataset": "x"}, "^dataset .*'x'"),
        ("fast", {"model": "convcnp", "dataset": "gp", "num_levels": 2}, "^num_levels "),
    ],
)
def test_unknown_names_are_refused(name: str, arguments: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(name, **arguments)  # type: ignore[arg-type]


def test_a_configuration_of_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match=r"danp .*ConvNPConfig"):
        build_model("danp", ConvNPConfig(), seed=0)


def test_a_model_and_a_prior_without_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "cnp", object)
    with pytest.raises(ValueError, match=r"^model must be one of danp, .*'cnp'"):
        recipe("fast", model="cnp", dataset="gp")
    monkeypatch.setitem(PRIORS, "triangle", Sawtooth())
    assert recipe("fast", model="convgnp", dataset="triangle").task_generator == Sawtooth()
    with pytest.raises(ValueError, match=r"^dataset of a danp must be one of sawtooth, .*'triang"):
        recipe("fast", model="danp", dataset="triangle")


@pytest.mark.parametrize("model", MODELS_WITH_RECIPES)
def test_the_fast_recipe_conditions_joint_gaussians(model: str) -> None:
    for name in RECIPES:
        config: Any = recipe(name, model=model, dataset="gp").model_config
        base = config.base if isinstance(config, DANPConfig) else config
        assert base.conditioned == (name == "fast" and model in ("danp", "convgnp"))
