"""The ``danp`` command."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from danp_lib.cli.evaluate import benchmark, evaluate, table, tasks
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
            result = super().main(arguments or ["--help"], **extra)
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
        sys.exit(result if isinstance(result, int) else 0)


# Plain text on every terminal, one line an error: no boxes and no coloured tracebacks.
app = typer.Typer(
    cls=OneLineErrors,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Diffusion-augmented neural processes: train, evaluate and predict.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"danp_lib {version('danp_lib')}")
        raise typer.Exit


_VERSION = typer.Option(
    "--version", help="Print the version.", callback=_print_version, is_eager=True
)
_DEBUG = typer.Option("--debug", help="Show where an error comes from: the whole traceback.")


@app.callback()
def _options(
    version: Annotated[bool, _VERSION] = False, debug: Annotated[bool, _DEBUG] = False
) -> None:
    pass


EXAMPLES = """
train --model danp --dataset sawtooth --out runs/danp
train --data records.csv --x time --y value --group station --out mine.safetensors
evaluate danp-sawtooth --tasks sawtooth
evaluate runs/danp/danp-gp.safetensors --tasks gp --num-samples 64 --json
benchmark danp-sawtooth --num-samples 1024 --compiled
benchmark ceiling-gp --measure marginals --out runs/results
table --json
tasks runs/benchmark_tasks
predict danp-sawtooth --context a.csv --at b.csv --out c.csv --samples 3
info danp-sawtooth
info --model danp --dataset sawtooth --recipe paper --json
export --web danp-sawtooth --out my-page
"""

for command in (train, evaluate, benchmark, table, tasks, predict, info, export):
    shown = [
        f"\n  danp {line}"
        for line in EXAMPLES.splitlines()
        if line.startswith(f"{command.__name__} ")
    ]
    epilog = f"\b\nExample{'s' if len(shown) > 1 else ''}:{''.join(shown)}"
    app.command(epilog=epilog, hidden=command is tasks)(command)


def main() -> None:
    """The entry point of the ``danp`` command."""
    app()
