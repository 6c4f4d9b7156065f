"""A short record: networks with more and more updates, beside a Gaussian process.

A DANP and a ConvGNP are trained on windows of one series of temperatures of the sea, of which about
a dozen do not overlap, as in the book's chapter on one's own data. The held-out windows are of the
last part of the series, or of stretches at random.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
from statsmodels.datasets import elnino

from danp_lib import fit
from danp_lib._config import to_dict
from danp_lib._files import write_atomically
from danp_lib.evaluation.results import results_folder
from danp_lib.fitting.records import RecordsWarning
from danp_lib.storage.origin import commit, hardware, versions

OPTIONS: dict[str, Any] = {"width": 3.0, "period": 1.0, "held_out": 0.35}
NUM_STEPS = (250, 1000, 6000)
DIVISIONS = (("time", 0), ("blocks", 0), ("blocks", 1))
"""How the held-out part is chosen, and the seed, which is of the networks too."""


def temperatures() -> pd.DataFrame:
    """Monthly means of the temperature of the sea off Peru, from statsmodels."""
    frame = elnino.load_pandas().data.set_index("YEAR")
    years = [year + month / 12 for year in frame.index for month in range(12)]
    return pd.DataFrame({"year": years, "celsius": frame.to_numpy().ravel()})


def score(by: str, seed: int, num_steps: int, folder: Path) -> dict[str, Any]:
    """Scores of both networks and of the Gaussian process after so many updates."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecordsWarning)  # that it is short
        fitted = fit(
            temperatures(),
            x="year",
            y="celsius",
            hold_out_by=by,
            seed=seed,
            num_steps=num_steps,
            folder=folder / f"{by}-{seed}-{num_steps}",
            **OPTIONS,
        )
    scores = {name: to_dict(one) for name, one in fitted.scores.items()}
    return {"by": by, "seed": seed, "num_steps": num_steps, "scores": scores}


def main() -> None:
    """Score what the file lacks; of a run that was stopped it says where that began."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/short-record"), metavar="FOLDER")
    runs = parser.parse_args().runs
    path = results_folder() / "short-record.json"
    document: dict[str, Any] = {
        "command": "python benchmarks/short_record.py",
        "commit": commit(),
        "hardware": to_dict(hardware()),
        "versions": versions(),
        "options": OPTIONS,
        "rows": [],
    }
    if path.is_file():
        now, document = document, json.loads(path.read_text(encoding="utf-8"))
        for key in ("options", "versions"):
            if document[key] != now[key]:
                raise ValueError(
                    f"{path} must have the {key} {now[key]}, got {document[key]}; remove it to "
                    "start anew."
                )
    rows = document["rows"]
    known = {(row["by"], row["seed"], row["num_steps"]) for row in rows}
    for by, seed in DIVISIONS:
        for num_steps in NUM_STEPS:
            if (by, seed, num_steps) in known:
                continue
            row = score(by, seed, num_steps, runs)
            rows.append(row)
            write_atomically(path, json.dumps(document, indent=1) + "\n")
            found = row["scores"]
            cells = ", ".join(f"{name} {one['log_likelihood']:.2f}" for name, one in found.items())
            print(f"{by}, seed {seed}, {num_steps:,} updates: {cells}", flush=True)


if __name__ == "__main__":
    main()
