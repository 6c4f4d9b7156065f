"""The ``danp`` command."""

import sys
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from danp_lib.cli.evaluate import benchmark, evaluate, table
from danp_lib.cli.info import export, info
from danp_lib.cli.predict import predict
from danp_lib.cli.train import train


class OneLineErrors(TyperGroup):
    """A group of commands that ends in one line and exit code 2 where the caller is at fault."""

    def main(self, args: Any = None, *others: Any, **extra: Any) -> NoReturn:
        """Run a command line, and exit."""
        arguments = list(sys.argv[1:] if args is None else args)
        extra |= {"prog_name": "danp", "standalone_mode": False}
        try:
            sys.exit(super().main(arguments or ["--help"], **extra))
        except typer.Abort:
            sys.exit(130)
        except Exception as error:
            # A wrong option or command: typer carries its own copy of click in some versions.
            wrong = hasattr(error, "format_message")
            ours = isinstance(error, (ValueError, OSError, ModuleNotFoundError))
            if arguments[:1] == ["--debug"] or not (wrong or ours):
                raise
            message = str(error) if ours else error.format_message()  # type: ignore[attr-defined]
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


@app.callback(invoke_without_command=True)
def _options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,
) -> None:
    if show_version:
        print(f"danp_lib {version('danp_lib')}")
        raise typer.Exit


EXAMPLES = """
danp train --model danp --dataset sawtooth --out runs/danp
danp train --data records.csv --x time --y value --group station --out mine.safetensors
danp evaluate danp-sawtooth --tasks sawtooth
danp evaluate runs/danp/danp-gp.safetensors --tasks gp --num-samples 64 --json
danp evaluate mine.safetensors --data later-records.csv
danp benchmark danp-sawtooth --num-samples 1024 --compiled
danp benchmark ceiling-gp --measure marginals --out runs/results
danp table --json
danp predict danp-sawtooth --context a.csv --at b.csv --out c.csv --samples 3
danp info danp-sawtooth
danp info --model danp --dataset sawtooth --recipe paper --json
danp export --web danp-sawtooth --out my-page
"""

for command in (train, evaluate, benchmark, table, predict, info, export):
    start = f"danp {command.__name__} "
    shown = [f"  {line}" for line in EXAMPLES.splitlines() if line.startswith(start)]
    app.command(epilog="\n".join(["\b", "Examples:", *shown]))(command)


def main() -> None:
    """The entry point of the ``danp`` command."""
    app()
