"""How fast the model in the page answers: Chromium beside torch, on one thread each.

An answer is S samples of danp-sawtooth for two context points, and the Gaussian of each at 257
inputs, as the page draws them. Torch, WebAssembly SIMD and plain JavaScript take turns. Both are
measured in CPU time of their one thread, which leaves out what other processes take, and by the
clock. A busy machine shares its caches and its clock rate too: its minimum says most.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from measure import argument_parser, save, spread, written

from danp_lib.data.points import PointSet
from danp_lib.models.contexts import unchecked_contexts
from danp_lib.models.danp import DANP
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
  const start = performance.now(), prepared = model.prepare(context);
  for (let s = 0; s < count; s++) model.denoise(prepared, DANP.drawNoise(model.config, 0, s), xt);
  return (performance.now() - start) / 1000;
}"""


class Chromium:
    """A page with a model for each kind of kernel."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.pages, self.meters = {}, {}
        for kind in ("simd", "plain"):
            page = self.pages[kind] = browser.new_page()
            page.goto((folder / "index.html").as_uri())
            assert page.evaluate(LOAD, [NAME, kind == "simd"]) == (kind == "simd")
            self.meters[kind] = page.context.new_cdp_session(page)
            self.meters[kind].send("Performance.enable", {"timeDomain": "threadTicks"})

    def cpu(self, kind: str) -> float:
        """Seconds of CPU that the page's thread has spent on its tasks."""
        metrics = self.meters[kind].send("Performance.getMetrics")["metrics"]
        return next(m["value"] for m in metrics if m["name"] == "TaskDuration")

    def seconds(self, kind: str, count: int) -> tuple[float, float]:
        """CPU time and wall time of one answer."""
        before = self.cpu(kind)
        wall = self.pages[kind].evaluate(ANSWER, [CONTEXT, NUM_TARGETS, count])
        return self.cpu(kind) - before, wall


@unchecked_contexts()
def torch_seconds(model: DANP, count: int) -> tuple[float, float]:
    """CPU time and wall time of one answer."""
    points = torch.tensor(CONTEXT)[None]
    context = PointSet(points[..., :1], points[..., 1:])
    xt = torch.linspace(-2.0, 2.0, NUM_TARGETS)[None, :, None]
    generator = torch.Generator().manual_seed(0)
    start = time.process_time(), time.perf_counter()
    model.predict(context, xt, num_samples=count, generator=generator)
    return time.process_time() - start[0], time.perf_counter() - start[1]


def in_milliseconds(seconds: list[float]) -> dict[str, float]:
    values = [1e3 * value for value in seconds]
    return {"minimum": min(values), **spread(values)}


def measure(chromium: Chromium, model: DANP, count: int, rounds: int) -> dict[str, Any]:
    """Each side's CPU time and wall time, in turns; the first two rounds are dropped."""
    sides = ["torch", "simd", *(["plain"] if count <= PLAIN_SAMPLES else [])]
    found: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds + 2):
        for side in sides:
            ours = side == "torch"
            both = torch_seconds(model, count) if ours else chromium.seconds(side, count)
            found[side].append(both)
    return {
        side: {
            clock: in_milliseconds([pair[i] for pair in pairs[2:]])
            for i, clock in enumerate(("cpu", "wall"))
        }
        for side, pairs in found.items()
    }


def main() -> None:
    from playwright.sync_api import sync_playwright

    arguments = argument_parser(__doc__ or "", rounds=9).parse_args()
    torch.set_num_threads(1)
    model = load_pretrained(NAME)
    assert isinstance(model, DANP)
    load = os.getloadavg()[0]
    rows = []
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        sizes = {p.name: p.stat().st_size for p in export_page(model, NAME, folder)}
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = running.chromium.launch(executable_path=path, args=FLAGS)
        version, chromium = browser.version, Chromium(browser, Path(folder))
        print("CPU milliseconds: the least, and the median with quartiles")
        print("| S | torch | Chromium, SIMD | Chromium, plain |\n|---|---|---|---|")
        for count in NUM_SAMPLES:
            row = measure(chromium, model, count, arguments.rounds)
            rows.append({"num_samples": count, "milliseconds": row})
            cells = [f"{v['cpu']['minimum']:.3g}; {written(v['cpu'])}" for v in row.values()]
            print(f"| {count} | {' | '.join(cells + [''] * (3 - len(cells)))} |", flush=True)
        browser.close()
    print("\n" + ", ".join(f"{name}: {size / 1000:.0f} kB" for name, size in sizes.items()))
    about = {"rounds": arguments.rounds, "browser": f"Chromium {version}", "load_average": load}
    save("live", {**about, "bytes": sizes, "answers": rows})


if __name__ == "__main__":
    main()
