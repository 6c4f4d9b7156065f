"""A Sphinx extension: run the chapters side by side, and only those whose outputs may have changed.

jupyter-cache keeps the outputs of a chapter under its code. They also depend on the library, the
weights, the benchmark tasks, the results and the installed packages: when one of these changes, the
cache is emptied. Chapters that are not in the cache are then run, several at a time, before Sphinx
reads the first page. One that fails is shown with its stored outputs, and the build says which cell
failed, and what to do.

``DANP_BOOK_FRESH=1`` in the environment runs every chapter.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.console import bold

logger = logging.getLogger(__name__)

ROOT = Path(__file__).resolve().parents[2]
READ_BY_CHAPTERS = (
    "danp_lib/**/*.py",
    "checkpoints/**/*",
    "benchmark_tasks/*",
    "results/**/*",
    "benchmarks/results/*",
    "book/*.yml",
)
"""Whatever a chapter's outputs depend on, besides its own code and the installed packages."""

MOST_AT_A_TIME = 4
"""Each chapter's kernel holds PyTorch, so there are never more of them, on however many cores."""


COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Failure:
    """A cell that failed."""

    chapter: str
    cell: int
    error: str

    def __str__(self) -> str:
        return f"chapter {self.chapter}, cell [{self.cell}]: {self.error}"


def fingerprint(root: Path = ROOT) -> str:
    """A hash of all that chapters read, and of the installed packages."""
    digest = hashlib.sha256(platform.python_version().encode())
    packages = {f"{d.metadata['Name']}=={d.version}" for d in distributions()}
    digest.update("\n".join(sorted(packages)).encode())
    digest.update(os.environ.get("DANP_DATA", "").encode())
    for path in sorted(
        {path for pattern in READ_BY_CHAPTERS for path in root.glob(pattern)}
    ):
        if path.is_file():
            digest.update(f"\n{path.relative_to(root).as_posix()}\n".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def drop_stale(cache_folder: Path, key: str, *, fresh: bool = False) -> None:
    """Empty the cache unless it was filled under the same key."""
    note = cache_folder / "fingerprint"
    if fresh or not note.exists() or note.read_text(encoding="utf-8") != key:
        shutil.rmtree(cache_folder, ignore_errors=True)
        cache_folder.mkdir(parents=True)
        note.write_text(key, encoding="utf-8")


def cell_that_failed(notebook: nbformat.NotebookNode) -> int:
    """The number of the first cell with an error, as Jupyter counts them: code cells, from 1."""
    cells = [
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.source.strip()
    ]
    for number, cell in enumerate(cells, start=1):
        if any(output.output_type == "error" for output in cell.outputs):
            return number
    # A cell that ran out of time leaves no error: it is the first that has not finished.
    return sum(cell.execution_count is not None for cell in cells) + 1


def run_all(
    chapters: list[Path], cache_folder: Path, *, timeout: int
) -> Iterator[Failure | None]:
    """Run the chapters that the cache does not hold; what is yielded is one result a chapter."""
    cache = get_cache(str(cache_folder))
    waiting: list[tuple[Path, nbformat.NotebookNode]] = []
    for chapter in chapters:
        notebook = nbformat.read(chapter, as_version=4)
        try:
            cache.match_cache_notebook(notebook)
        except KeyError:
            waiting.append((chapter, notebook))
    if not waiting:
        return
    # The longest first, so that none of them is left to run alone at the end.
    waiting.sort(key=lambda pair: -pair[1].metadata.get("seconds", 0))
    workers = min(MOST_AT_A_TIME, os.cpu_count() or 1, len(waiting))
    logger.info(
        bold("running %d chapters, %d at a time"), len(waiting), workers
    )
    # Kernels that run side by side share no core.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ThreadPoolExecutor(workers) as pool:
        runs: dict[
            Future[ExecutionResult], tuple[Path, nbformat.NotebookNode]
        ] = {}
        for chapter, notebook in waiting:
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    cell.outputs, cell.execution_count = [], None
            run = pool.submit(
                single_nb_execution,
                notebook,
                cwd=str(chapter.parent),
                timeout=timeout,
                allow_errors=False,
            )
            runs[run] = chapter, notebook
        for run in as_completed(runs):
            chapter, notebook = runs[run]
            result = run.result()
            if result.err is None:
                logger.info("ran %s in %.0f s", chapter.stem, result.time)
                bundle = CacheBundleIn(
                    notebook,
                    str(chapter),
                    data={"execution_seconds": result.time},
                )
                cache.cache_notebook_bundle(
                    bundle, check_validity=False, overwrite=True
                )
                yield None
            else:
                lines = [
                    line
                    for line in str(result.err).splitlines()
                    if line.strip()
                ]
                error = COLOR_CODE.sub("", lines[-1])[:200]
                yield Failure(chapter.stem, cell_that_failed(notebook), error)


def run_before_reading(app: Sphinx) -> None:
    """Fill the cache that MyST-NB reads, and show failed chapters as they are stored."""
    config = app.env.mystnb_config  # type: ignore[attr-defined]
    if app.builder.format != "html" or config.execution_mode != "cache":
        return
    cache_folder = Path(config.execution_cache_path)
    drop_stale(
        cache_folder,
        fingerprint(),
        fresh=bool(os.environ.get("DANP_BOOK_FRESH")),
    )
    found = sorted(
        app.project.discover(
            app.config.exclude_patterns, app.config.include_patterns
        )
    )
    chapters = [Path(app.srcdir) / f"{name}.ipynb" for name in found]
    chapters = [chapter for chapter in chapters if chapter.is_file()]
    results = run_all(chapters, cache_folder, timeout=config.execution_timeout)
    failures = [result for result in results if result is not None]
    for failure in failures:
        logger.warning("%s", failure, type="chapters")
    if failures:
        shown = [
            *config.execution_excludepatterns,
            *(f"{f.chapter}.ipynb" for f in failures),
        ]
        changed = config.copy(execution_excludepatterns=shown)
        app.env.mystnb_config = changed  # type: ignore[attr-defined]
    app.failed_chapters = failures  # type: ignore[attr-defined]


def say_what_failed(app: Sphinx, exception: Exception | None) -> None:
    """Repeat, after all that Sphinx has said, which chapters failed and what to do about it."""
    failures: list[Failure] = getattr(app, "failed_chapters", [])
    if not failures:
        return
    print("\nThese cells did not run to their end:")
    for failure in failures:
        print(f"  {failure}")
    print(
        "Their pages show the outputs that are stored in the repository. If you have changed the\n"
        "chapter or the library, open the chapter in Jupyter and run it up to that cell. If you\n"
        "have changed nothing, a number is too close to an edge for your processor: please report\n"
        "the lines above, with what `make portable` prints."
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    # After MyST-NB has read its settings.
    app.connect("builder-inited", run_before_reading, priority=900)
    app.connect("build-finished", say_what_failed, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
