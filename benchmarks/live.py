"""How fast the model in the page answers: Chromium beside torch, on one thread each.

An answer is S samples of danp-sawtooth for two context points, and the Gaussian of each at 257
inputs, as the page draws them. Torch, WebAssembly SIMD and plain JavaScript take turns.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measure import in_turns, parse_arguments, save, spread, written

from danp_lib.data.points import PointSet
from danp_lib.storage.pretrained import load_pretrained
from danp_lib.storage.web import export_page

NAME = "danp-sawtooth"
NUM_SAMPLES = (1, 16, 64)
PLAIN_SAMPLES = 16
"""The most that plain JavaScript is asked for: its widget begins with 4."""

CONTEXT = [(-0.06, 0.9), (0.52, 0.92)]
NUM_TARGETS = 257
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]

LOAD = """async ([name, simd]) => {
  await DANP.loadScript(name, document.querySelector("script[src]").src);
  globalThis.model = await DANP.createModel(name, { simd });
  return model.kernels.simd;
}"""
ANSWER = """([points, targets, count]) => {
  const context = { x: points.map((p) => p[0]), y: points.map((p) => p[1]) };
  const xt = Float64Array.from({ length: targets }, (_, i) => -2 + (4 * i) / (targets - 1));
  const prepared = model.prepare(context);
  for (let s = 0; s < count; s++) model.denoise(prepared, DANP.drawNoise(model.config, 0, s), xt);
}"""


@contextmanager
def pages(folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """A page for each kind of kernel, and the browser's version."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=path, args=FLAGS)
        found = {}
        for kind in ("simd", "plain"):
            found[kind] = browser.new_page()
            found[kind].goto((folder / "index.html").as_uri())
            simd = found[kind].evaluate(LOAD, [NAME, kind == "simd"])
            assert simd == (kind == "simd")
        yield found, browser.version
        browser.close()


def main() -> None:
    arguments = parse_arguments(__doc__ or "", rounds=9)
    torch.set_num_threads(1)
    model = load_pretrained(NAME)
    points = torch.tensor(CONTEXT)[None]
    context = PointSet(points[..., :1], points[..., 1:])
    xt = torch.linspace(-2.0, 2.0, NUM_TARGETS)[None, :, None]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        sizes = {p.name: p.stat().st_size for p in export_page(model, NAME, folder)}
        with pages(Path(folder)) as (found, version):
            print("| milliseconds | torch | Chromium, SIMD | Chromium, plain |\n|---|---|---|---|")
            for count in NUM_SAMPLES:

                def by_torch(count: int = count) -> None:
                    generator = torch.Generator().manual_seed(0)
                    model.predict(context, xt, num_samples=count, generator=generator)

                def by_page(kind: str, count: int = count) -> None:
                    found[kind].evaluate(ANSWER, [CONTEXT, NUM_TARGETS, count])

                sides = {"torch": by_torch, "simd": lambda: by_page("simd")}
                if count <= PLAIN_SAMPLES:
                    sides["plain"] = lambda: by_page("plain")
                seconds = in_turns(sides, arguments.rounds)
                row = {side: spread([1e3 * s for s in times]) for side, times in seconds.items()}
                rows.append({"num_samples": count, "milliseconds": row})
                cells = [
                    written(row[side]) if side in row else "" for side in ("torch", "simd", "plain")
                ]
                print(f"| S = {count} | {' | '.join(cells)} |", flush=True)
    print("\n" + ", ".join(f"{name}: {size / 1000:.0f} kB" for name, size in sizes.items()))
    results = {"rounds": arguments.rounds, "browser": f"Chromium {version}", "bytes": sizes}
    save("live", {**results, "answers": rows})


if __name__ == "__main__":
    main()
