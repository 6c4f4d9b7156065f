"""The ``danp`` command.

The commands import what they need when they run, so that help and mistakes answer quickly.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup


class OneLineErrors(TyperGroup):
    """A group of commands that ends in one line and exit code 2 where the caller is at fault."""

    debug = False

    def main(self, args: Any = None, *others: Any, **extra: Any) -> NoReturn:
        """Run a command line, and exit."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra |= {"prog_name": "danp", "standalone_mode": False}
        try:
            result = super().main(arguments or ["--help"], **extra)
        except typer.Abort:
            sys.exit(130)
        except Exception as error:
            if self.debug:
                raise
            if isinstance(error, (ValueError, OSError, ModuleNotFoundError)):
                _fail(str(error))
            # A wrong option or command: typer carries its own copy of click in some versions.
            if not hasattr(error, "format_message"):
                raise
            _fail(error.format_message())
        sys.exit(result if isinstance(result, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was parsed."""
        self.debug = ctx.params["debug"]
        return super().invoke(ctx)


def _fail(message: str) -> NoReturn:
    print("danp:", " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


# Plain text on every terminal, one line an error: no boxes and no coloured tracebacks.
app = typer.Typer(
    cls=OneLineErrors,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Diffusion-augmented neural processes: train, evaluate and predict.",
)


def _check_seed(seed: int) -> int:
    # What a torch.Generator takes. A range of typer's would fill the help with these numbers.
    if not -(2**63) <= seed < 2**64:
        raise typer.BadParameter(f"{seed} is not in the range from -2**63 to 2**64 - 1.")
    return seed


CHECKPOINT_HELP = "A checkpoint's file, or the name of a pretrained model."
DATASETS = "sawtooth, square, square-released or gp"
Dataset = Annotated[str | None, typer.Option(help=f"{DATASETS}.")]
Checkpoint = Annotated[str, typer.Argument(help=CHECKPOINT_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Seed = Annotated[int, typer.Option(help="Seed of all randomness.", callback=_check_seed)]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
XColumn = Annotated[str | None, typer.Option("--x", help="Name of the column of inputs.")]
YColumn = Annotated[str | None, typer.Option("--y", help="Name of the column of outputs.")]
Group = Annotated[str | None, typer.Option(help="Name of the column that tells functions apart.")]
MaxMinutes = Annotated[float | None, typer.Option(help="Stop after this time, with a checkpoint.")]
CompileModel = Annotated[
    bool | None, typer.Option("--compile/--no-compile", help="By default in long runs on a CPU.")
]
Snapshots = Annotated[
    bool, typer.Option("--snapshots", help="Keep checkpoints at 1,024, 2,048, ... steps too.")
]
OwnStart = Annotated[
    bool, typer.Option("--own-start", help="Count a function's inputs from its own first one.")
]
Width = Annotated[
    float | None, typer.Option(help="Cut series into windows this wide, in units of x.")
]
Period = Annotated[float | None, typer.Option(help="Take out a cycle this long, and put it back.")]
TaskOrder = Annotated[str, typer.Option(help="random, or forecast: targets after the context.")]
MaxContext = Annotated[int | None, typer.Option(help="Most points of a context.")]
NumTargets = Annotated[int | None, typer.Option(help="Targets of a task.")]
HeldOut = Annotated[float, typer.Option(help="Fraction of the data to hold out.")]
HoldOutBy = Annotated[str | None, typer.Option(help="group, time (the last part) or blocks.")]
Estimator = typer.Option(help="model (as published), noising, both, or autoregressive (a rollout).")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, allow_nan=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"danp_lib {version('danp_lib')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error comes from: the whole traceback.")
    ] = False,
) -> None:
    pass


@app.command(
    epilog="\b\nExamples:\n"
    "  danp train --model danp --dataset sawtooth --out runs/danp\n"
    "  danp train --data records.csv --x time --y value --group station --out mine.safetensors"
)
def train(
    ctx: typer.Context,
    out: Annotated[
        Path,
        typer.Option(
            help="A folder for the run and its checkpoint; or the checkpoint itself, such as "
            "a/m.safetensors, with the run in a/m.run."
        ),
    ],
    model: Annotated[str, typer.Option(help="danp, convcnp, convgnp or ar-convcnp.")] = "danp",
    dataset: Dataset = None,
    recipe: Annotated[str, typer.Option(help="paper (as published) or fast (better).")] = "fast",
    steps: Annotated[int | None, typer.Option(help="Updates; the recipe's if left out.")] = None,
    seed: Seed = 0,
    levels: Annotated[
        int | None, typer.Option(help="F of a DANP; the paper's Table 2 or 2 if left out.")
    ] = None,
    max_minutes: MaxMinutes = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the CPU.")] = None,
    device: Device = "cpu",
    compile_model: CompileModel = None,
    snapshots: Snapshots = False,
    data: Annotated[
        Path | None, typer.Option(help="A CSV file of your own, a row a measurement.")
    ] = None,
    x: XColumn = None,
    y: YColumn = None,
    group: Group = None,
    own_start: OwnStart = False,
    width: Width = None,
    period: Period = None,
    tasks: TaskOrder = "random",
    max_context: MaxContext = None,
    num_targets: NumTargets = None,
    held_out: HeldOut = 0.2,
    hold_out_by: HoldOutBy = None,
) -> None:
    """Train a model by a recipe, or on your own data, and write its checkpoint and card.

    A run that was stopped goes on where it was when the same command is given again: after Ctrl-C,
    after a termination signal, or once --max-minutes are over. A run of the recipe paper,
    whose learning rate is constant, is lengthened by more --steps; the rate of fast falls to zero
    at the last step, so that its length is fixed.

    With --data, some functions are held out, and the model's score on them is printed beside those
    of a ConvGNP and of a Gaussian process.
    """
    from danp_lib.cli.records import run_records
    from danp_lib.cli.train import run_recipe

    if (data is None) == (dataset is None):
        raise ValueError("train needs --dataset, or --data and its columns, and not both.")
    run: Any = run_recipe if data is None else run_records
    kind, foreign = ("dataset", _OF_RECORDS) if data is None else ("data", _OF_RECIPES)
    for option in ctx.command.params:
        if option.name in foreign and ctx.params.pop(option.name) != option.get_default(ctx):
            raise ValueError(f"{option.opts[0]} does not go with --{kind}.")
    if not run(**ctx.params):
        print("danp: stopped; the same command goes on from here.", file=sys.stderr)
        raise typer.Exit(130)


_OF_RECIPES = {"dataset", "recipe", "max_minutes", "device", "compile_model", "snapshots"}
_OF_RECORDS = {
    *("data", "x", "y", "group", "own_start", "width", "period", "tasks", "max_context"),
    *("num_targets", "held_out", "hold_out_by"),
}


@app.command(
    epilog="\b\nExamples:\n"
    "  danp evaluate danp-sawtooth --tasks sawtooth\n"
    "  danp evaluate runs/danp/danp-gp.safetensors --tasks gp --num-samples 64 --json"
)
def evaluate(
    checkpoint: Checkpoint,
    tasks: Annotated[
        str,
        typer.Option(help=f"A task file; or {DATASETS}, for the 310 benchmark tasks."),
    ],
    estimator: Annotated[str, Estimator] = "both",
    num_samples: Annotated[int, typer.Option(help="Samples a task, for a DANP.")] = 256,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Estimate the likelihood of a model on a set of tasks.

    The average likelihood is the benchmark's score: the mean over the tasks of the geometric mean
    of the density per target, with 1.96 standard errors. A ConvCNP and a ConvGNP need no estimator,
    and an AR ConvCNP is always rolled out. Tasks and densities are in the units of the data that
    the model was trained on, where the checkpoint knows them.
    """
    from danp_lib.cli.evaluate import evaluate_checkpoint, render

    result = evaluate_checkpoint(
        checkpoint, tasks, estimator=estimator, num_samples=num_samples, seed=seed, device=device
    )
    print(_json(result.to_dict()) if as_json else render(result))


@app.command(
    epilog="\b\nExamples:\n"
    "  danp benchmark danp-sawtooth --num-samples 1024 --compiled\n"
    "  danp benchmark ceiling-gp --measure marginals --out runs/results"
)
def benchmark(
    ctx: typer.Context,
    name: Annotated[
        str, typer.Argument(help="A pretrained model, or ceiling-gp and so on: the exact one.")
    ],
    measure: Annotated[
        str,
        typer.Option(
            help="likelihood; marginals (CRPS and coverage); samples (the likelihood of a DANP "
            "against the number of samples); or used (a DANP's likelihood and marginals, from "
            "samples of its own and its defensive component)."
        ),
    ] = "likelihood",
    out: Annotated[Path, typer.Option(help="A folder for the result.")] = Path("results"),
    estimator: Annotated[str | None, Estimator] = None,
    num_samples: Annotated[
        str | None,
        typer.Option(
            help="Samples a task, for a DANP; 256 if left out. For the likelihood also paper: "
            "50,000 for small contexts and 5,000 for others."
        ),
    ] = None,
    tasks_per_size: Annotated[
        int | None, typer.Option(help="For samples: tasks of each context size; 1 if left out.")
    ] = None,
    max_samples: Annotated[
        int | None, typer.Option(help="For samples: leave out every number of samples above.")
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    compiled: Annotated[
        bool,
        typer.Option(
            "--compiled", help="Compile a DANP's network for 256 samples and more, on a CPU."
        ),
    ] = False,
) -> None:
    """Measure a pretrained model on its benchmark tasks, and write the result to a folder.

    danp table and the book read these results. A run of --measure samples that was stopped goes on
    where it was when the same command is given again.
    """
    from danp_lib.cli.evaluate import benchmark

    print(benchmark(**ctx.params))


@app.command(epilog="\b\nExample:\n  danp table --json")
def table(as_json: AsJson = False) -> None:
    """Print the benchmark's table: the paper's average likelihoods, ours and the ceiling.

    The ceiling is the score of the exact predictives, given the models' smallest variance. On waves
    no model can beat it by more than luck; on the GP it is a yardstick and no limit.
    """
    from danp_lib.cli.evaluate import render_table
    from danp_lib.evaluation.table import table as get_table

    rows = get_table()
    print(_json(rows) if as_json else render_table(rows))


@app.command(hidden=True, epilog="\b\nExample:\n  danp tasks runs/benchmark_tasks")
def tasks(folder: Annotated[Path, typer.Argument(help="A new or empty folder.")]) -> None:
    """Draw the sets of benchmark tasks anew, and write them to a folder, once."""
    from danp_lib.storage.tasks import write_benchmarks

    write_benchmarks(folder)


@app.command(
    epilog="\b\nExample:\n"
    "  danp predict danp-sawtooth --context a.csv --at b.csv --out c.csv --samples 3"
)
def predict(
    ctx: typer.Context,
    checkpoint: Checkpoint,
    context: Annotated[
        Path,
        typer.Option(help="CSV with the columns x and y; may have no rows, and gaps in y."),
    ],
    at: Annotated[Path, typer.Option(help="CSV with the column x.")],
    out: Annotated[Path, typer.Option(help="CSV to write; what is there is replaced.")],
    x: XColumn = None,
    y: YColumn = None,
    group: Group = None,
    num_samples: Annotated[
        int, typer.Option(help="Samples of the auxiliary data that a DANP averages over.")
    ] = 256,
    quantiles: Annotated[
        str, typer.Option(help="Levels of the quantiles, separated by commas; may be empty.")
    ] = "0.05,0.5,0.95",
    samples: Annotated[int, typer.Option(help="Joint samples to write, a column each.")] = 0,
    seed: Seed = 0,
) -> None:
    """Predict at some inputs from a context, both in CSV files with a header.

    A model trained on your own records knows its columns; they are x and y else. Where --context
    has a column of groups, each is predicted by itself, and --at may have that column too. The
    result has the columns of groups, if any, and of inputs, then mean, sd (standard deviation),
    q0.05 and so on for the quantiles, sample_1 and so on; its rows are in the order of --at. All
    are in the units of the data that the model was trained on, where the checkpoint knows them.
    Rows of the context without an output are left out; that, and a context unlike those of the
    training, is said on the standard error.
    """
    from danp_lib.cli.predict import predict

    predict(**ctx.params)


@app.command(
    epilog="\b\nExamples:\n"
    "  danp info danp-sawtooth\n"
    "  danp info --model danp --dataset sawtooth --recipe paper --json"
)
def info(
    checkpoint: Annotated[str | None, typer.Argument(help=CHECKPOINT_HELP)] = None,
    model: Annotated[str | None, typer.Option(help="danp, convcnp, convgnp, ar-convcnp.")] = None,
    dataset: Dataset = None,
    recipe: Annotated[str | None, typer.Option(help="paper or fast.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print the configuration and the number of parameters of a trained model or of a recipe."""
    from danp_lib.cli.info import describe_checkpoint, describe_recipe, render

    if checkpoint is not None:
        if (model, dataset, recipe) != (None, None, None):
            raise ValueError("info takes a checkpoint, or --model, --dataset and --recipe.")
        found = describe_checkpoint(checkpoint)
    else:
        if model is None or dataset is None:
            raise ValueError("info needs a checkpoint, or --model and --dataset.")
        found = describe_recipe(recipe or "fast", model=model, dataset=dataset)
    print(_json(found) if as_json else render(found))


@app.command(epilog="\b\nExample:\n  danp export --web danp-sawtooth --out my-page")
def export(
    web: Annotated[str, typer.Option(help="A DANP's checkpoint or name, for a web page.")],
    out: Annotated[Path, typer.Option(help="The folder to write the page's files to.")],
) -> None:
    """Write a model as a page that answers in a browser, without a server or a network.

    The folder gets the model's weights and configuration as one script, the engine as another, and
    an index.html that shows how a page of one's own has them. To put the engine together takes the
    package wasmtime.
    """
    from danp_lib.cli.info import open_fitted
    from danp_lib.models.danp import DANP
    from danp_lib.storage.checkpoint import read_header
    from danp_lib.storage.pretrained import find_checkpoint
    from danp_lib.storage.web import export_page

    path, opened = find_checkpoint(web), open_fitted(web)
    if opened.season is not None:
        raise ValueError(
            "a page has no season to put back: --web must be a model trained without --period, got "
            f"{web}, of period {opened.season.period:g}."
        )
    if not isinstance(opened.model, DANP):
        raise ValueError(f"--web must be a danp, got {web}, a {opened.model.name}.")
    prior, scaling = read_header(path).task_generator, opened.scaling
    for made in export_page(opened.model, path.stem, out, task_generator=prior, scaling=scaling):
        print(f"{made}: {made.stat().st_size / 1000:.0f} kB", file=sys.stderr)


def main() -> None:
    """The entry point of the ``danp`` command."""
    app()
