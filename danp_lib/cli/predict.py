"""``danp predict``: from points in CSV files to predictions in a CSV file."""

from pathlib import Path
from typing import Annotated

from typer import Option

from danp_lib._files import check_writable, write_atomically
from danp_lib.cli import arguments
from danp_lib.cli.arguments import Defended, Group, Seed, XColumn, YColumn
from danp_lib.fitting.prediction import predict_table
from danp_lib.fitting.records import RecordsWarning
from danp_lib.models.contexts import ContextWarning
from danp_lib.storage.pretrained import find_checkpoint

_CONTEXT = Option(help="CSV with the columns x and y; may have no rows, and gaps in y.")
_NUM_SAMPLES = Option(help="Samples of the auxiliary data that a DANP averages over.")
_START = Option(
    help="Where every function starts, for a model that counts from there; if left out, the "
    "earliest input given or asked for."
)
_QUANTILES = Option(help="Levels of the quantiles, separated by commas; may be empty.")


def predict(
    checkpoint: Annotated[str, arguments.CHECKPOINT],
    context: Annotated[Path, _CONTEXT],
    at: Annotated[Path, Option(help="CSV with the column x.")],
    out: Annotated[Path, Option(help="CSV to write; what is there is replaced.")],
    x: XColumn = None,
    y: YColumn = None,
    group: Group = None,
    start: Annotated[str | None, _START] = None,
    defended: Defended = False,
    num_samples: Annotated[int, _NUM_SAMPLES] = 256,
    quantiles: Annotated[str, _QUANTILES] = "0.05,0.5,0.95",
    samples: Annotated[int, Option(help="Joint samples to write, a column each.")] = 0,
    seed: Seed = 0,
) -> None:
    """Predict at some inputs from a context, both in CSV files with a header.

    A model trained on your own records knows its columns; otherwise they are x and y. Where
    --context has a column of groups, each is predicted by itself, and --at may have that column
    too. The result has the columns of groups, if any, and of inputs, then mean, sd (standard
    deviation), q0.05 and so on for the quantiles, sample_1 and so on; its rows are in the order of
    --at, or where that names no group, of one group after the other. All are in the units of the
    data that the model was trained on, where the checkpoint knows them. Rows of the context without
    an output are left out, and outputs at equal inputs averaged where the training did so; that,
    and a context unlike those of the training, is said on the standard error.
    """
    levels = _parse_quantiles(quantiles)
    check_writable(out)
    for source in (find_checkpoint(checkpoint), context, at):
        if out.exists() and source.exists() and source.samefile(out):
            raise ValueError(f"out must not be a file that is read, got {out}.")
    fitted = arguments.open_fitted(checkpoint, defended=defended)
    with arguments.saying_warnings(RecordsWarning, ContextWarning):
        result = predict_table(
            fitted,
            context,
            at,
            x=x,
            y=y,
            group=group,
            start=start,
            num_samples=num_samples,
            quantiles=levels,
            samples=samples,
            seed=seed,
        )
    write_atomically(out, result.to_csv(index=False, lineterminator="\n"))


def _parse_quantiles(text: str) -> list[float]:
    """The numbers in a text such as ``0.05,0.5,0.95``; none in an empty one."""
    try:
        return [float(part) for part in text.split(",")] if text.strip() else []
    except ValueError:
        raise ValueError(f"quantiles must be numbers, as in 0.05,0.5,0.95, got {text!r}.") from None
