"""Results on the benchmark tasks: how each kind is made, and its file.

A file holds where the result comes from, the model's configuration, records, and their summary.
"""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_args

import torch

from danp_lib._config import check_choice, check_kind, from_dict, naming, to_dict
from danp_lib._files import data_folders, write_atomically
from danp_lib.data.generators import DATASETS, split_name
from danp_lib.evaluation.curves import Samples, score_samples
from danp_lib.evaluation.marginals import Marginals, score_marginals
from danp_lib.evaluation.score import Evaluation, evaluate, papers_samples
from danp_lib.evaluation.used import Used, score_used
from danp_lib.exact.oracles import ORACLES
from danp_lib.inference.compiling import can_compile, compile_unet
from danp_lib.inference.likelihood import Rollouts, num_orders
from danp_lib.models.danp import defend
from danp_lib.storage.origin import Hardware, commit, hardware, sha256, versions
from danp_lib.storage.pretrained import PRETRAINED, load_pretrained, pretrained_path
from danp_lib.storage.tasks import benchmark_path, benchmark_tasks

CEILING = "ceiling"
"""The name of the exact predictives among the results; see :mod:`danp_lib.exact.oracles`."""

NAMES = (
    *(name for name in PRETRAINED if split_name(name)[1] in DATASETS),
    *(f"{CEILING}-{dataset}" for dataset in DATASETS),
)
"""What there are benchmark tasks for, such as most pretrained models and ``"ceiling-gp"``."""

AS_IN_PAPER = "paper"
"""It stands for :func:`~danp_lib.evaluation.score.papers_samples` as a number of samples."""

DEFENDED = "-defended"
"""It ends what is measured of a DANP that is :meth:`~danp_lib.models.danp.DANP.defended`."""

CHUNK_SIZE = 256
"""The default ``chunk_size`` of every estimator, which a network is compiled for."""

_PARTIAL = ".partial.json"  # ends the name of the file that a run keeps what is done in

Content = TypeVar("Content", Evaluation, Marginals, Samples, Used)


class Kind(NamedTuple):
    """One kind of result."""

    measure: str  #: What is measured, as ``danp benchmark`` calls it.
    key: str  #: Name of the content in a file.
    score: Callable[..., Any]  #: From a model, tasks, a generator and options to the content.
    options: tuple[str, ...]
    kept: str | None = None  #: The records that a run keeps, to go on from, unless it is short.


KINDS: dict[type[Any], Kind] = {
    Evaluation: Kind("likelihood", "evaluation", evaluate, ("estimator", "num_samples"), "tasks"),
    Marginals: Kind("marginals", "marginals", score_marginals, ("num_samples",)),
    Samples: Kind("samples", "samples", score_samples, ("tasks_per_size", "max_samples"), "curves"),
    Used: Kind("used", "used", score_used, ("num_samples",)),
}
"""The kinds of results, by the class of their content."""


@dataclass(frozen=True)
class Origin:
    """Where a result comes from."""

    name: str  #: One of :data:`NAMES`.
    dataset: str  #: Name of the benchmark set.
    weights: str | None  #: SHA-256 of the checkpoint, or ``None`` for an oracle.
    tasks: str  #: SHA-256 of the benchmark set.
    seed: int  #: Of the samples.
    commit: str | None  #: The library's commit in git, or ``None`` where that is not known.
    hardware: Hardware  #: The machine.
    danp_lib: str  #: Version of this library.
    torch: str  #: Version of PyTorch.
    compiled: bool = False  #: Whether the network was compiled, which takes fewer seconds.


@dataclass(frozen=True)
class Result(Generic[Content]):
    """A result and where it comes from; of a run that was resumed, from where it began."""

    origin: Origin  #: Where it comes from.
    configuration: dict[str, Any]  #: The model's, as JSON.
    content: Content  #: Summary and records.

    @property
    def measured(self) -> str:
        """The estimator of a likelihood, ``"marginals"``, ``"samples"`` or ``"used"``.

        A likelihood of a defended model has :data:`DEFENDED` at the end.
        """
        measured = getattr(self.content, "estimator", KINDS[type(self.content)].key)
        return measured + DEFENDED * (self.configuration.get("defensive_weight", 0.0) > 0.0)


def load_model(
    name: str, *, seed: int = 0, device: torch.device | str = "cpu", compiled: bool = False
) -> tuple[Any, Origin]:
    """One of :data:`NAMES`, and the origin of a result of it; see :func:`run_benchmark`."""
    check_choice("name", name, NAMES)
    kind, dataset = split_name(name)
    model: Any
    if kind == CEILING:
        model, weights, device = ORACLES[dataset](), None, "cpu"
    else:
        model, weights = load_pretrained(name, device=device), sha256(pretrained_path(name))
    compiled = compiled and model.num_levels > 0 and can_compile(device)
    if compiled:
        compile_unet(model, batch_size=CHUNK_SIZE)
    origin = Origin(
        name=name,
        dataset=dataset,
        weights=weights,
        tasks=sha256(benchmark_path(dataset)),
        seed=seed,
        commit=commit(),
        hardware=hardware(device),
        compiled=compiled,
        **versions(),
    )
    return model, origin


def run_benchmark(
    name: str,
    content: type[Content],
    *,
    seed: int = 0,
    device: torch.device | str = "cpu",
    compiled: bool = False,
    defended: bool = False,
    folder: str | os.PathLike[str] | None = None,
    progress: bool = False,
    **options: Any,
) -> Result[Content]:
    """Measure one of :data:`NAMES` on the benchmark set of its dataset, as a key of :data:`KINDS`.

    The options are those of the function that scores, as :data:`KINDS` names them; the
    ``num_samples`` of a likelihood may be :data:`AS_IN_PAPER`. An oracle computes on the CPU. With
    ``compiled``, a DANP's network is compiled, if there are :data:`CHUNK_SIZE` samples and
    :func:`~danp_lib.inference.compiling.can_compile` says so. ``defended`` is for the likelihood of
    a DANP, see :meth:`~danp_lib.models.danp.DANP.defended`. Likelihoods by samples, and curves
    of them, are kept in the folder after every task, until :func:`save_result`. The same call
    resumes from there, and one of other weights, tasks, samples, seed or versions is refused.
    """
    kind = KINDS[content]
    for key, value in options.items():
        if key not in kind.options:
            raise ValueError(
                f"{key} = {value!r} is no option for {kind.measure}, which has "
                f"{', '.join(kind.options)}."
            )
    as_in_paper = options.get("num_samples") == AS_IN_PAPER
    if content is not Evaluation and (as_in_paper or defended):
        what = "defended" if defended else f"num_samples = {AS_IN_PAPER!r}"
        raise ValueError(f"{what} is for the likelihood, got the measure {kind.measure!r}.")
    if as_in_paper:
        options["num_samples"] = partial(papers_samples, split_name(name)[1])
    counts = [options.get(key) for key in ("num_samples", "max_samples")]
    few = any(isinstance(count, int) and count < CHUNK_SIZE for count in counts)
    model, origin = load_model(name, seed=seed, device=device, compiled=compiled and not few)
    if defended:
        model = defend(model)
    configuration = to_dict(getattr(model, "config", model))
    estimator = options.get("estimator", "both")
    measured = estimator + DEFENDED * defended if content is Evaluation else kind.key
    is_sampled = model.is_sampled or (estimator in get_args(Rollouts) and origin.weights)
    if kind.kept is not None and is_sampled and folder is not None:
        path = (Path(folder) / result_name(name, measured)).with_suffix(_PARTIAL)
        if path.is_file():
            before = load_result(path, content)
            is_counted = model.num_levels > 0 and content is Evaluation
            drawn = options.get("num_samples", 256) if is_counted else None
            _check_resumable(path, before, origin, drawn)
            origin, options["done"] = before.origin, getattr(before.content, kind.kept)
        options["keep"] = lambda part: _write(path, Result(origin, configuration, part))
    device = "cpu" if origin.weights is None else device
    generator = torch.Generator(device=device).manual_seed(seed)
    tasks = benchmark_tasks(origin.dataset).to(device)
    result = kind.score(model, tasks, generator=generator, progress=progress, **options)
    return Result(origin, configuration, result)


def result_name(name: str, measured: str) -> str:
    """The file name of a result of :attr:`Result.measured`, such as ``danp-sawtooth-both.json``."""
    return f"{name}-{measured}.json"


def results_folder() -> Path:
    """Where the results lie: the first of :func:`~danp_lib._files.data_folders` that exists."""
    folders = data_folders("results")
    return next((folder for folder in folders if folder.is_dir()), folders[-1])


def save_result(folder: str | os.PathLike[str], result: Result[Content]) -> Path:
    """Write a result to a folder, whole or not at all, under its own name, and return the path."""
    path = Path(folder) / result_name(result.origin.name, result.measured)
    _write(path, result)
    path.with_suffix(_PARTIAL).unlink(missing_ok=True)
    return path


def load_result(path: str | os.PathLike[str], content: type[Content]) -> Result[Content]:
    """Read a result whose content is of a class, and refuse a summary that is not its records'."""
    path, kind = Path(path), KINDS[content]
    with naming(path):
        document = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(document, dict):
            raise ValueError(f"a result must be an object, got {document!r}.")
        configuration = document.pop("configuration", {})
        check_kind(dict, configuration=configuration)
        found = from_dict(content, document.pop(kind.key, None), name=kind.key)
        origin = from_dict(Origin, document, name="result")
        summarized = _summarized(found)
        if found != summarized:
            _check_summary(kind.key, to_dict(found), to_dict(summarized))
    return Result(origin, configuration, found)


def _write(path: Path, result: Result[Content]) -> None:
    document = to_dict(result.origin) | {"configuration": result.configuration}
    document[KINDS[type(result.content)].key] = to_dict(result.content)
    write_atomically(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def _check_resumable(
    path: Path, before: Result[Any], now: Origin, num_samples: int | Callable[[int], int] | None
) -> None:
    """Refuse what another run kept, or likelihoods with another number of samples, if given."""
    rules = []
    for key in ("name", "weights", "tasks", "seed", "danp_lib", "torch"):
        expected = getattr(now, key)
        rules.append((f"be of {key} {expected}", expected, getattr(before.origin, key)))
    if num_samples is not None:
        for record in before.content.tasks:
            size, orders = record.context_size, num_orders(record.estimator)
            count = orders * (num_samples(size) if callable(num_samples) else num_samples)
            rule = f"have {count} samples for {size} context points"
            rules.append((rule, count, record.num_samples))
    for rule, expected, found in rules:
        if found != expected:
            raise ValueError(
                f"{path} must {rule} to be resumed, got {found}; delete it to start anew."
            )


def _summarized(content: Any) -> Any:
    """The content anew, from the records in it."""
    if isinstance(content, Evaluation):
        return Evaluation.summarize(content.tasks)
    if isinstance(content, Marginals):
        return Marginals.summarize(content.tasks, num_samples=content.num_samples)
    if isinstance(content, Samples):
        return content
    parts = {key: _summarized(getattr(content, key)) for key in ("evaluation", "marginals")}
    return replace(content, **parts)


def _check_summary(key: str, found: Any, expected: Any) -> None:
    """Refuse a summary, as JSON, that differs by more than rounding from that of its records."""
    if isinstance(found, dict):
        for name, value in found.items():
            _check_summary(f"{key}.{name}", value, expected[name])
    elif found != expected:
        numbers = isinstance(found, float) and isinstance(expected, float)
        if not numbers or not math.isclose(found, expected, rel_tol=1e-9):
            raise ValueError(f"{key} must be {expected}, as its records say, got {found}.")
