"""Records of one's own: ``danp train --data``, and ``danp evaluate --data``."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.cli.arguments import aligned, as_text, saying_warnings, start_run, with_error
from danp_lib.fitting.fit import fit
from danp_lib.fitting.fitted import Fitted, HeldOutScore
from danp_lib.fitting.records import RecordsWarning
from danp_lib.fitting.scoring import score_records
from danp_lib.models.convnp import count_parameters
from danp_lib.storage.card import card_paths, page_head

NAMES = {"danp": "DANP", "convgnp": "ConvGNP", "convcnp": "ConvCNP", "gp": "Gaussian process"}


def run_records(*, data: Path, out: Path, model: str, threads: int | None, **options: Any) -> None:
    """Train on a CSV file; an interrupted run writes no checkpoint.

    The options are those of :func:`~danp_lib.fitting.fit.fit`.
    """
    path, folder = start_run(out, f"{model}-{data.stem}", threads)
    given: dict[str, Any] = {"model": model}
    given |= {name: value for name, value in options.items() if value is not None}
    with saying_warnings(RecordsWarning, where=data):
        fitted = fit(data, folder=folder, **given)
    fitted.save(path)
    write_atomically(card_paths(path)[1], render_card(path.stem, fitted, data))
    print(render_scores(fitted.scores))


def evaluate_records(fitted: Fitted, data: Path, *, as_json: bool, **options: Any) -> None:
    """Print the score on further records beside that on those held out in training.

    The options are those of :func:`~danp_lib.fitting.scoring.score_records`.
    """
    with saying_warnings(RecordsWarning, where=data):
        score = score_records(fitted, data, **options)
    held_out = fitted.scores[fitted.model.name]
    if as_json:
        print(as_text({"data": to_dict(score), "held_out": to_dict(held_out)}))
        return
    rows = [["functions of", "number", "nats per target", "CRPS", "50 %", "90 %"]]
    for name, one in ((data.name, score), ("held out in training", held_out)):
        rows.append([name, str(one.num_functions), *_figures(one)])
    print("\n".join(aligned(rows, left=(0,))))


def render_scores(scores: Mapping[str, HeldOutScore]) -> str:
    """Scores as a Markdown table, the fitted model first."""
    lines = [
        "| held out | nats per target | behind by | CRPS | 50 % | 90 % |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for number, (name, score) in enumerate(scores.items()):
        behind = with_error(score.behind, score.behind_ci95, ".3f") if number else ""
        likelihood, *others = _figures(score)
        lines.append(f"| {' | '.join([NAMES[name], likelihood, behind, *others])} |")
    return "\n".join(lines)


def render_card(name: str, fitted: Fitted, data: Path | None = None) -> str:
    """What a model of one's own records is, as a Markdown page that may name their file."""
    layout, said = fitted.layout, fitted.provenance
    run, functions = said["training"], said["functions"]
    batch = run["batch"]
    columns = "columns " + ", ".join(filter(None, (layout.x, layout.y, layout.group)))
    kind = "" if layout.width is None else " overlapping windows"
    rows = {
        "Model": f"{fitted.model.name}, {count_parameters(fitted.model):,} parameters",
        "Records": columns if data is None else f"{data.name}, {columns}",
        "Inputs": f"must {fitted.rule}",
        "Functions": f"{functions['trained_on']}{kind} to train on, {functions['held_out']} held "
        f"out by {functions['by']}",
        "Contexts": f"at most {batch['context_size'][1]} points, with the noise of the records",
        "Targets": f"{batch['num_targets']}, {said['fit']['tasks']}",
        "Season": "none" if fitted.season is None else f"period {said['fit']['period']}",
        "Training": f"{run['num_steps']:,} steps, seed {run['seed']}",
        "Versions": f"danp_lib {said['danp_lib']}, PyTorch {said['torch']}",
    }
    return (
        f"{page_head(name, rows)}\n## On functions held out\n\n{render_scores(fitted.scores)}\n\n"
        "Log-density and CRPS are in the units of the data; ± is 1.96 standard errors over the "
        "functions. *Behind by* is the difference on the same functions. The percentages say how "
        "many targets lie in the central interval of that probability.\n"
    )


def _figures(score: HeldOutScore) -> list[str]:
    """The log-likelihood, the CRPS and both coverages of a score as text."""
    likelihood = with_error(score.log_likelihood, score.log_likelihood_ci95, ".3f")
    coverages = (f"{100 * share:.0f} %" for share in (score.coverage_50, score.coverage_90))
    return [likelihood, f"{score.crps:#.3g}".rstrip("."), *coverages]
