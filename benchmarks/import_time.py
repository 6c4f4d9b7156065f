"""What importing danp_lib costs beyond importing torch, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

from measure import argument_parser, in_turns, save, spread, written


def main() -> None:
    arguments = argument_parser(__doc__ or "", rounds=11).parse_args()

    def run(module: str) -> None:
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)

    seconds = in_turns(
        {"torch": lambda: run("torch"), "danp_lib": lambda: run("danp_lib")}, arguments.rounds
    )
    beyond = spread([b - a for a, b in zip(seconds["torch"], seconds["danp_lib"], strict=True)])
    times = {name: spread(values) for name, values in seconds.items()}
    save("import_time", {"rounds": arguments.rounds, "seconds": times, "beyond_torch": beyond})
    print("| import | torch | danp_lib | beyond torch |\n|---|---|---|---|")
    cells = (written(times["torch"], " s"), written(times["danp_lib"], " s"), written(beyond, " s"))
    print(f"| seconds | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
