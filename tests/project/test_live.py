"""The model in the page: its numbers against torch, and its widget under a mouse and a keyboard."""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from danp_lib.data.generators import GaussianProcess, Sawtooth, SquareWave, Wave
from danp_lib.data.noising import NoiseSchedule
from danp_lib.data.points import PointSet
from danp_lib.exact.oracles import GaussianProcessOracle, SawtoothOracle, SquareWaveOracle
from danp_lib.exact.waves import WaveOracle
from danp_lib.models.danp import DANP, ancestral
from danp_lib.storage.checkpoint import load_checkpoint, read_header
from danp_lib.storage.pretrained import load_pretrained, pretrained_path
from danp_lib.storage.web import (
    PAGE_SCRIPT,
    export_page,
    model_script,
    pack,
    page_script,
    source,
    widget_module,
)

sys.path.append(str(Path(__file__).parents[2] / "book" / "_ext"))

import live_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

wasmtime = pytest.importorskip("wasmtime")

BOOK = Path(__file__).parents[2] / "book"
FIXTURE_SCRIPT = (Path(__file__).parent / "live_fixture.js").read_text(encoding="utf-8")
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
FIREFOX = shutil.which("firefox") or shutil.which("firefox-esr")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
PATIENCE = 300_000  # milliseconds; a busy machine is not a failure
TOLERANCE = 1e-4
"""In units of y, for float32's rounding through F + 1 passes. Torch's is 2e-4 for 30 points of a
Gaussian process, so it computes the reference in float64."""

FITTED = "danp-power"
MODELS = ("danp-sawtooth", "danp-f2-sawtooth", "danp-square", "danp-gp", FITTED)
KINDS = ("no context", "two points", "two points at one input", "30 points", "off the prior")
XT = torch.linspace(-2.0, 2.0, 41)
SAMPLES = 2


class Case(NamedTuple):
    """What goes into one prediction, and what torch makes of it in float64."""

    given: dict[str, Any]
    expected: dict[str, Any]


def path_of(name: str) -> Path:
    """The checkpoint: a pretrained model's, or that of records, not conditioned at level 0."""
    records = BOOK.parent / "checkpoints" / "records"
    return records / f"{name}.safetensors" if name == FITTED else pretrained_path(name)


@functools.cache
def model_named(name: str) -> DANP:
    """The model, without a defensive component."""
    model: DANP = load_checkpoint(path_of(name))
    model.config = replace(model.config, defensive_weight=0.0)
    return model


@functools.cache
def rounded(name: str) -> DANP:
    """The model with the weights that the page has."""
    model = copy.deepcopy(model_named(name))
    model.load_state_dict({key: pack(w).float() for key, w in model.state_dict().items()})
    return model.eval()


def context_for(name: str, kind: str) -> PointSet:
    """Points of the model's own prior, or such as it has never seen, which conditioning softens."""
    if kind == "off the prior":
        return PointSet(torch.tensor([[[-0.9], [0.7]]]), torch.tensor([[[0.3], [0.8]]]))
    prior = read_header(path_of(name)).task_generator or GaussianProcess()
    size = {"no context": 0, "30 points": 30}.get(kind, 2)
    context = prior.sample_task(
        1, context_size=size, generator=torch.Generator().manual_seed(3)
    ).context
    if kind != "two points at one input":
        return context
    return context.concat(PointSet(context.x[:, :1], context.y[:, :1]))


def walk(
    model: DANP, context: PointSet, inputs: Tensor, noise: Tensor, xt: Tensor
) -> dict[str, Any]:
    """Auxiliary sets, the clean level's Gaussian, and the mean of every noisy level."""
    found = model.denoise(model.encode(context), inputs, ancestral(noise))
    target = found.at(xt)
    answer = {
        "sets": by_sample(*(points.y for points in found.auxiliary)),
        "means": by_sample(target.loc),
        "variances": by_sample(target.cov_diag),
        "factors": by_sample(target.cov_factor),
    }
    for level in range(1, model.num_levels + 1):
        answer[f"level {level}"] = by_sample(
            torch.cat(
                [
                    model(context, [points[s] for points in found.auxiliary], xt, level).loc
                    for s in range(SAMPLES)
                ]
            )
        )
    return answer


def by_sample(*values: Tensor) -> list[Any]:
    """One list of numbers a sample, or one a sample and level."""
    rows = [[v[s].detach().flatten().tolist() for v in values] for s in range(SAMPLES)]
    return rows if len(values) > 1 else [row[0] for row in rows]


@functools.cache
def case(name: str, kind: str) -> Case:
    model, context = rounded(name), context_for(name, kind)
    rng = torch.Generator().manual_seed(7)
    inputs = model.draw_inputs(SAMPLES, generator=rng, dtype=torch.float32)
    noise = model.draw_noise(SAMPLES, model.config.num_auxiliary, generator=rng)
    expected = walk(
        copy.deepcopy(model).double(),
        PointSet(context.x.double(), context.y.double()),
        inputs.double(),
        noise,
        XT[None, :, None].double(),
    )
    draws = zip(by_sample(*inputs), by_sample(*noise), strict=True)
    given = {
        "context": {"x": context.x.flatten().tolist(), "y": context.y.flatten().tolist()},
        "xt": XT.tolist(),
        "draws": [{"inputs": x, "noise": e} for x, e in draws],
    }
    return Case(given, expected)


def differences(answer: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """The largest difference, by what was compared."""
    assert answer.keys() == expected.keys()
    return {
        what: float(np.abs(np.array(answer[what]) - np.array(expected[what])).max())
        for what in expected
    }


def request(name: str) -> dict[str, Any]:
    """What live_fixture.js takes."""
    return {"model": name, "cases": [case(name, kind).given for kind in KINDS]}


def check(name: str, answers: list[dict[str, Any]]) -> None:
    """Compare a page's answers with torch's."""
    for kind, answer in zip(KINDS, answers, strict=True):
        found = differences(answer, case(name, kind).expected)
        assert max(found.values()) < TOLERANCE, (kind, found)


# ---- the kernel, without a browser


@pytest.fixture(scope="module")
def kernel() -> tuple[Any, Any]:
    """The memory as float32, and the kernel's functions."""
    store = wasmtime.Store()
    memory = wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(16, None)))
    module = wasmtime.Module(store.engine, wasmtime.wat2wasm(source("kernel.wat")))
    exports = wasmtime.Instance(store, module, [memory]).exports(store)
    floats = np.frombuffer(memory.get_buffer_ptr(store), dtype=np.float32)
    call = {name: functools.partial(exports[name], store) for name in ("affine", "activate")}
    return floats, call


@pytest.mark.parametrize("rows", [1, 3, 4, 10])
def test_kernel_multiplies_overlapping_rows(kernel: Any, rows: int) -> None:
    floats, call = kernel
    rng = np.random.default_rng(rows)
    k, n, a_stride, c_stride = 20, 16, 12, 24
    a, w, b, c = 64, 1024, 2048, 4096
    floats[:] = 0.0
    floats[a : a + 400] = rng.normal(size=400)
    floats[w : w + k * n] = rng.normal(size=k * n)
    floats[b : b + n] = rng.normal(size=n)
    call["affine"](4 * a, 4 * a_stride, 4 * w, 4 * b, 4 * c, 4 * c_stride, rows, k, n)
    inputs = np.stack([floats[a + i * a_stride :][:k] for i in range(rows)])
    expected = inputs.astype(float) @ floats[w : w + k * n].reshape(k, n) + floats[b : b + n]
    made = floats[c : c + rows * c_stride].reshape(rows, c_stride)
    np.testing.assert_allclose(made[:, :n], expected, atol=1e-5)
    assert not made[:, n:].any()
    assert not floats[c + rows * c_stride :].any()


@pytest.mark.parametrize("bound", [0.0, 4.0])
@pytest.mark.parametrize("added", [(False, False), (True, False), (False, True)])
def test_kernel_activates(kernel: Any, added: tuple[bool, bool], bound: float) -> None:
    floats, call = kernel
    rows, n = 5, 64
    x = torch.linspace(-8.0, 8.0, rows * n).reshape(rows, n)
    before, after = torch.randn(2, rows, n, generator=torch.Generator().manual_seed(0))
    for at, values in ((64, x), (1024, before), (2048, after)):
        floats[at : at + rows * n] = values.flatten().numpy()
    places = [4 * at if use else 0 for at, use in zip((1024, 2048), added, strict=True)]
    call["activate"](4 * 64, *places, rows, n, bound)
    h = torch.nn.functional.gelu(x + before * added[0]) + after * added[1]
    if bound:
        h = h * torch.rsqrt(1.0 + h.square().mean(dim=1, keepdim=True) / bound**2)
    made = floats[64 : 64 + rows * n].reshape(rows, n)
    np.testing.assert_allclose(made, h.numpy(), atol=2e-6)


# ---- in a browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with the widget, the models that it may load, and an empty page with the scripts."""
    made = tmp_path_factory.mktemp("live")
    (made / PAGE_SCRIPT).write_text(page_script(), encoding="utf-8")
    for name in MODELS:
        prior = read_header(path_of(name)).task_generator
        script = model_script(model_named(name), name, task_generator=prior)
        (made / f"{name}.js").write_text(script, encoding="utf-8")
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">'
        '<meta name="viewport" content="width=device-width">'
    )
    body = '<div class="danp-live" data-model="danp-sawtooth" data-controls="full"></div>'
    scripts = f'<script src="{PAGE_SCRIPT}"></script>'
    (made / "widget.html").write_text(f"{head}{body}{scripts}", encoding="utf-8")
    for kind in ("noising", "prior"):
        body = f'<div class="danp-live" data-widget="{kind}"></div>'
        (made / f"{kind}.html").write_text(f"{head}{body}{scripts}", encoding="utf-8")
    (made / "empty.html").write_text(head, encoding="utf-8")
    (made / "bare.html").write_text(f"{head}{scripts}", encoding="utf-8")
    return made


class Handler(SimpleHTTPRequestHandler):
    """Serves files, keeps what is posted, and says nothing."""

    posted: list[bytes]
    arrived: threading.Event

    def do_POST(self) -> None:
        self.posted.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.arrived.set()
        self.send_response(204)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


class Site(NamedTuple):
    """Where the folder is served, and what pages have posted."""

    http: str
    file: str
    posted: list[bytes]
    arrived: threading.Event


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Site]:
    posted: list[bytes] = []
    arrived = threading.Event()
    kind = type("Bound", (Handler,), {"posted": posted, "arrived": arrived})
    handler = functools.partial(kind, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Site(f"http://127.0.0.1:{server.server_port}", folder.as_uri(), posted, arrived)
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as running:
        chromium = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=PATIENCE)
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page; at the end no error may be on its console and no request have left."""
    contexts, problems = [], []

    def open_one(home: str, name: str, *, before: str = "", **options: Any) -> Page:
        context = browser.new_context(viewport={"width": 900, "height": 700}, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        if before:
            page.add_init_script(before)
        page.on("console", lambda message: problems.append(message.text))
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((home, "data:", "blob:"))
                else problems.append(f"leaves: {request.url}")
            ),
        )
        page.goto(f"{home}/{name}")
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert problems == []


NO_WASM = "delete globalThis.WebAssembly"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scheme", ["http", "file", "http, plain JavaScript"])
def test_page_computes_what_torch_does(
    site: Site, open_page: Callable[..., Page], name: str, scheme: str
) -> None:
    home = site.file if scheme == "file" else site.http
    plain = "plain" in scheme
    page = open_page(home, "bare.html", before=NO_WASM if plain else "")
    made = page.evaluate(FIXTURE_SCRIPT, request(name))
    assert made["simd"] is not plain
    check(name, made["answers"])


def test_exact_posterior_is_the_library_s(site: Site, open_page: Callable[..., Page]) -> None:
    context = context_for("danp-gp", "30 points")
    page = open_page(site.http, "bare.html")
    given = [context.x.flatten().tolist(), context.y.flatten().tolist(), XT.tolist()]
    script = """([x, y, xt]) => {
      const { mean, sd } = DANP.exact.gp({ x, y }, xt, 0.25);
      return [Array.from(mean), Array.from(sd)];
    }"""
    mean, sd = np.array(page.evaluate(script, given))
    exact = GaussianProcessOracle(variance_floor=1e-12).predict(context, XT[None, :, None])
    np.testing.assert_allclose(mean, exact.mean.flatten(), atol=1e-6)
    np.testing.assert_allclose(sd, exact.variance.sqrt().flatten(), atol=1e-5)


WAVES = """([kind, cases, size, tolerance, xt]) => cases.map(([x, y]) => {
  const found = DANP.exact[kind]({ x, y }, DANP.priors[kind].defaults, { size, tolerance });
  const sum = found.weights.reduce((a, b) => a + b, 0);
  return [found.weights.map((w) => w / sum), found.waves.map((wave) => xt.map((x) => wave.at(x)))];
})"""


@pytest.mark.parametrize(
    ("prior", "oracle"),
    [
        (Sawtooth(), SawtoothOracle(num_nodes=256)),
        (Sawtooth(), SawtoothOracle(num_nodes=256, tolerance=0.02)),
        (SquareWave(), SquareWaveOracle(num_nodes=256)),
    ],
)
def test_waves_that_points_leave_are_the_library_s(
    site: Site, open_page: Callable[..., Page], prior: Wave, oracle: WaveOracle
) -> None:
    """Wave by wave, with its probability: for 0, 1, 2, 3 and 30 points, twice each."""
    xt = torch.linspace(-1.97, 1.93, 41, dtype=torch.float64)
    contexts = [
        prior.sample_task(
            1, context_size=size, generator=torch.Generator().manual_seed(seed)
        ).context
        for size in (0, 1, 2, 3, 30)
        for seed in (0, 1)
    ]
    cases = [[points.x.flatten().tolist(), points.y.flatten().tolist()] for points in contexts]
    given = [prior.name, cases, 256, getattr(oracle, "tolerance", None), xt.tolist()]
    found = open_page(site.http, "bare.html").evaluate(WAVES, given)
    for context, (weights, outputs) in zip(contexts, found, strict=True):
        exact = oracle.predict(context, xt[None, :, None])
        np.testing.assert_allclose(weights, exact.logits[0].softmax(0), atol=1e-12)
        np.testing.assert_allclose(outputs, exact.components.mean[0, :, :, 0], atol=1e-9)


def test_posterior_says_where_there_is_none(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(site.http, "bare.html")
    script = """([kind, x, y]) => {
      const { waves, within, why } = DANP.posterior({ x, y }, DANP.priors[kind].defaults);
      return [waves?.length, within, why];
    }"""
    task = Sawtooth().sample_task(1, context_size=5, generator=torch.Generator().manual_seed(0))
    x, y = task.xc.flatten(), task.yc.flatten()
    by_hand = (y + torch.tensor([0.0, 0.01, -0.01, 0.01, -0.01])).tolist()
    assert page.evaluate(script, ["sawtooth", x.tolist(), y.tolist()]) == [1, 0, None]
    _, within, why = page.evaluate(script, ["sawtooth", x.tolist(), by_hand])
    assert (within, why) == (0.02, None)
    none = page.evaluate(script, ["sawtooth", [0.0, 0.01, 0.02], [0.2, 0.5, 0.2]])
    assert none[2] == "No sawtooth wave passes within 0.02 of all points."
    # Every square wave of the paper is 0 at 0.
    for y_at_zero, left in ((0.0, 4096), (1.0, None), (0.5, None)):
        assert page.evaluate(script, ["square", [0.0], [y_at_zero]])[0] == left
    noisy = "() => DANP.posterior({ x: [], y: [] }, { ...DANP.priors.gp.defaults, noise: 0.1 })"
    assert page.evaluate(noisy) is None


@pytest.mark.browser
@pytest.mark.skipif(FIREFOX is None, reason="no Firefox is installed")
@pytest.mark.parametrize("scheme", ["http", "file"])
def test_firefox_computes_it_too(site: Site, folder: Path, tmp_path: Path, scheme: str) -> None:
    requests = json.dumps([request(name) for name in MODELS])
    (folder / "report.html").write_text(
        f"""<!doctype html><meta charset="utf-8"><script src="{PAGE_SCRIPT}"></script><script>
        const run = {FIXTURE_SCRIPT.rstrip().removesuffix(";")};
        (async () => {{
          const made = [];
          for (const request of {requests}) made.push(await run(request));
          return made;
        }})().catch(String).then((made) =>
          fetch("{site.http}/", {{ method: "POST", mode: "no-cors", body: JSON.stringify(made) }}));
        </script>""",
        encoding="utf-8",
    )
    # No first-run pages, no updates, no telemetry.
    quiet = {
        "browser.shell.checkDefaultBrowser": False,
        "browser.aboutwelcome.enabled": False,
        "datareporting.policy.dataSubmissionEnabled": False,
        "toolkit.telemetry.reportingpolicy.firstRun": False,
        "app.update.enabled": False,
        "network.captive-portal-service.enabled": False,
        "network.connectivity-service.enabled": False,
        "extensions.getAddons.cache.enabled": False,
    }
    lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in quiet.items())
    (tmp_path / "user.js").write_text("\n".join(lines), encoding="utf-8")
    site.posted.clear()
    site.arrived.clear()
    home = site.file if scheme == "file" else site.http
    command = [str(FIREFOX), "--headless", "--no-remote", "--profile", str(tmp_path)]
    with subprocess.Popen(
        [*command, f"{home}/report.html"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"HOME": str(tmp_path)},
        start_new_session=True,
    ) as firefox:
        try:
            assert site.arrived.wait(PATIENCE / 1000), "Firefox did not answer"
        finally:
            os.killpg(firefox.pid, signal.SIGTERM)
    for name, made in zip(MODELS, json.loads(site.posted[0]), strict=True):
        assert made["simd"]
        check(name, made["answers"])


# ---- the widget

LIVE = "document.querySelector('.danp-live').danp"
CURVES = f"{LIVE}.idle().then((a) => a.curves.map((curve) => Array.from(curve)))"
"""The curves of the answer, once it is finished."""

MISSES = f"""{LIVE}.idle().then(({{ xt, curves }}) => {LIVE}.points.map(([x, y]) => {{
  const at = xt.findIndex((u) => u > x - 1 / 128);
  return curves.map((curve) => Math.abs(curve[at] - y)).sort((a, b) => a - b);
}}))"""
"""By point, how far the curves pass from it."""


def started(page: Page, *, tap: bool = False) -> Page:
    button = page.get_by_role("button", name="Start the model")
    button.tap() if tap else button.click()
    page.wait_for_function(f"{LIVE}.sampler")
    return page


def center(page: Page, index: int) -> tuple[float, float]:
    box = page.locator(".danp-point").nth(index).bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def canvas_at(page: Page, x: float, y: float) -> tuple[float, float]:
    left, top = page.evaluate(f"{LIVE}.plot.toPage([{x}, {y}])")
    box = page.locator("canvas").first.bounding_box()
    assert box is not None
    return box["x"] + left, box["y"] + top


def picture(page: Page) -> str:
    return page.evaluate("document.querySelector('canvas').toDataURL()")


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_nothing_loads_before_it_is_asked_for(
    site: Site, open_page: Callable[..., Page], scheme: str
) -> None:
    page = open_page(getattr(site, scheme), "widget.html")
    scripts = "[...document.scripts].map((script) => script.src.split('/').pop())"
    assert page.evaluate(scripts) == [PAGE_SCRIPT]
    before = picture(page)
    started(page)
    assert len(page.evaluate(CURVES)) == 16
    assert page.evaluate(scripts) == ["danp-sawtooth.js", PAGE_SCRIPT]
    page.wait_for_function(f"document.querySelector('canvas').toDataURL() !== '{before}'")


def test_samples_pass_through_points_that_are_clicked_and_dragged(
    site: Site, open_page: Callable[..., Page]
) -> None:
    page = started(open_page(site.file, "widget.html"))
    page.evaluate(CURVES)
    page.mouse.click(*canvas_at(page, -0.7, 0.3))
    assert page.locator(".danp-point").count() == 3
    misses = np.array(page.evaluate(MISSES))
    assert misses.shape == (3, 16)
    # The picture's inputs are 1/64 apart, where a wave falls by 0.1 at the most.
    assert np.median(misses, axis=1).max() < 0.06
    # Drag the third point: few samples, the same ones, and more when it is let go.
    page.mouse.move(*center(page, 2))
    page.mouse.down()
    for step in range(1, 5):
        page.mouse.move(*canvas_at(page, -0.7 + 0.02 * step, 0.3 + 0.05 * step))
    few = page.evaluate(CURVES)
    assert 1 <= len(few) <= 4
    page.mouse.up()
    many = page.evaluate(CURVES)
    assert len(many) == 16
    assert many[: len(few)] == few
    assert page.evaluate(f"{LIVE}.points[2]") == pytest.approx([-0.62, 0.5], abs=0.01)
    assert np.median(page.evaluate(MISSES), axis=1).max() < 0.06
    page.wait_for_timeout(700)  # so that the next two clicks are not those that made the point
    page.mouse.dblclick(*center(page, 2))
    assert page.locator(".danp-point").count() == 2


def test_a_small_move_bends_curves_and_other_noise_makes_others(
    site: Site, open_page: Callable[..., Page]
) -> None:
    page = started(open_page(site.http, "widget.html"))
    page.get_by_label("Data").select_option("danp-gp")
    page.wait_for_function(f"{LIVE}.sampler")
    before = np.array(page.evaluate(CURVES))
    point = page.locator(".danp-point").first
    point.press("ArrowUp")
    page.wait_for_timeout(400)  # a key held down is a drag, until it has been let go for a while
    bent = np.array(page.evaluate(CURVES))
    page.get_by_role("button", name="Resample").click()
    others = np.array(page.evaluate(CURVES))
    assert before.shape == bent.shape == others.shape
    assert 0 < np.abs(bent - before).mean() < 0.1 < 0.5 < np.abs(others - bent).mean()


def test_keyboard_adds_moves_and_removes(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(site.file, "widget.html")
    page.get_by_role("button", name="Start the model").press("Enter")
    page.wait_for_function(f"{LIVE}.sampler")
    page.evaluate(CURVES)
    page.get_by_role("button", name="Add point").press("Enter")
    page.wait_for_function(f"{LIVE}.points.length === 3")
    assert page.evaluate("document.activeElement.className") == "danp-point"
    (x, y) = page.evaluate(f"{LIVE}.points[2]")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    moved = page.evaluate(f"{LIVE}.points[2]")
    assert moved == pytest.approx([x + 0.04, max(y - 0.075, -0.25)])
    assert f"x {moved[0]:.2f}".replace("-", "\N{MINUS SIGN}") in str(
        page.evaluate("document.activeElement.ariaValueText")
    )
    page.keyboard.press("Delete")
    assert page.evaluate(f"{LIVE}.points.length") == 2
    assert page.evaluate("document.activeElement.className") == "danp-point"


def test_a_model_is_made_once_however_often_it_is_asked_for(
    site: Site, open_page: Callable[..., Page]
) -> None:
    page = open_page(site.file, "widget.html")
    page.evaluate(
        """() => {
          const make = DANP.createModel;
          globalThis.made = 0;
          DANP.createModel = (...all) => { made += 1; return make(...all); };
        }"""
    )
    point = page.locator(".danp-point").first
    for _ in range(5):
        point.press("ArrowRight")
    page.wait_for_function(f"{LIVE}.sampler")
    page.mouse.click(300, 300)
    page.evaluate(CURVES)
    assert page.evaluate("made") == 1


def test_points_can_be_cleared_before_the_model_is_there(
    site: Site, open_page: Callable[..., Page]
) -> None:
    page = open_page(site.file, "widget.html")
    page.evaluate(
        f"""() => {{
          const {{ name, points }} = {LIVE};
          DANP.posters = {{ [name]: {{ points, xt: [-2, 2], curves: [[0, 1]] }} }};
        }}"""
    )
    page.evaluate("document.documentElement.dataset.theme = 'light'")  # draws anew
    shown = f"{LIVE}.canvas.toDataURL()"
    before = page.evaluate(shown)
    page.get_by_role("button", name="Clear").click()
    assert page.evaluate(f"{LIVE}.points.length") == 0
    assert page.evaluate(shown) != before


def test_controls_change_data_samples_and_level(site: Site, open_page: Callable[..., Page]) -> None:
    page = started(open_page(site.http, "widget.html"))
    page.get_by_label("Samples").select_option("4")
    assert len(page.evaluate(CURVES)) == 4
    level = page.get_by_label("Level")
    level.fill("0")  # the noisiest
    first, *others = page.evaluate(CURVES)
    assert all(curve == first for curve in others), "walks begin with one mean"
    assert page.evaluate(f"{LIVE}.answer.sets[0].x.length") == 50
    assert level.get_attribute("aria-valuetext") == "level 3"
    page.get_by_label("Data").select_option("danp-gp")
    page.wait_for_function(f"{LIVE}.sampler")
    assert len(page.evaluate(CURVES)) == 4
    assert page.evaluate(f"{LIVE}.exact.sd.length") == 257
    assert page.get_by_text("exact posterior, mean and 90").is_visible()
    page.get_by_role("button", name="Clear").click()
    page.evaluate(CURVES)
    said = page.get_by_role("status").text_content()
    assert said is not None
    assert said.startswith("0 points, 4 samples in ")


def test_finger_taps_on_a_phone(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(
        site.http, "widget.html", has_touch=True, is_mobile=True, reduced_motion="reduce"
    )
    page.set_viewport_size({"width": 390, "height": 800})
    started(page, tap=True)
    page.evaluate(CURVES)
    page.touchscreen.tap(*canvas_at(page, 1.0, 0.5))
    assert page.evaluate(f"{LIVE}.points.length") == 3
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_reduced_motion_is_respected(
    site: Site, open_page: Callable[..., Page], motion: str
) -> None:
    """Samples appear at once, not one after the other; nothing on the page is animated."""
    page = open_page(site.http, "widget.html", reduced_motion=motion)
    # A slice of work is shorter than one sample, so that each would be a picture of its own.
    page.evaluate(f"""() => {{
      const plot = {LIVE}.plot, draw = plot.draw.bind(plot);
      globalThis.drawn = [];
      plot.draw = (shown) => {{
        if ({LIVE}.answer) drawn.push({LIVE}.answer.curves.length);
        draw(shown);
      }};
      let calls = 0;
      performance.now = () => 20 * calls++;
    }}""")
    started(page)
    assert len(page.evaluate(CURVES)) == 16
    pictures = page.evaluate("drawn")
    assert set(pictures) == ({16} if motion == "reduce" else set(range(1, 17)))
    assert page.evaluate("document.getAnimations().length") == 0


def test_the_exact_posterior_follows_the_points(site: Site, open_page: Callable[..., Page]) -> None:
    """Also before a model is there; and the page says when there is none."""
    page = open_page(site.file, "widget.html")
    assert page.evaluate(f"{LIVE}.exact.waves.length") == 2
    small = "document.querySelector('.danp-small canvas')"
    before = page.evaluate(f"{small}.toDataURL()")
    page.mouse.move(*center(page, 1))
    page.mouse.down()
    page.mouse.move(*canvas_at(page, 0.9, 0.3))
    assert page.evaluate(f"{LIVE}.exact.waves.length") > 2
    assert page.evaluate(f"{small}.toDataURL()") != before
    page.mouse.up()
    page.wait_for_function(f"{LIVE}.sampler")
    page.mouse.click(*canvas_at(page, 0.93, 0.9))
    assert page.get_by_text("No sawtooth wave passes within 0.02").is_visible()
    page.get_by_role("button", name="Clear").click()
    label = page.locator(".danp-small canvas").get_attribute("aria-label")
    assert label == "Exact posterior: a continuum of waves is left."
    page.evaluate(CURVES)


def test_noising_is_the_library_s(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(site.file, "noising.html")
    shown, before = f"{LIVE}.shown", picture(page)
    for beta, num_levels, level in ((0.085, 3, 3), (0.6, 10, 10), (0.6, 10, 2), (0.6, 10, 0)):
        page.get_by_label("β, noise").fill(str(beta))
        page.get_by_label("F, number of levels").fill(str(num_levels))
        page.get_by_role("slider", name=re.compile("^Level")).fill(str(level))
        schedule = NoiseSchedule(beta, num_levels)
        signal, variance = schedule.signal(level), schedule.variance(level)
        assert page.evaluate(f"{shown}.signal") == pytest.approx(signal)
        assert page.evaluate(f"{shown}.variance") == pytest.approx(variance, abs=1e-12)
        clean, y = np.array(
            page.evaluate(
                f"(() => {{ const {{ f, x, y }} = {LIVE}.noised(); "
                "return [x.map((u) => f.at(u)), y]; })()"
            )
        )
        noise = y - signal * clean
        # 300 values: the mean and the variance within four standard deviations of theirs.
        assert abs(noise.mean()) <= 4 * np.sqrt(variance / 300)
        assert abs(noise.var() - variance) <= 4 * variance * np.sqrt(2 / 300)
    assert picture(page) != before
    said = page.get_by_role("status").text_content()
    assert said == "Level 0 is the function itself."
    page.get_by_role("button", name="Another function").click()
    assert np.abs(np.array(page.evaluate(f"{shown}.y")) - y).mean() > 0.05


@pytest.mark.parametrize("kind", ["sawtooth", "square", "gp"])
def test_hidden_function_is_found_by_its_points(
    site: Site, open_page: Callable[..., Page], kind: str
) -> None:
    page = open_page(site.http, "prior.html")
    page.get_by_label("Data").select_option(kind)
    assert page.evaluate(f"{LIVE}.shown.length") == 16
    box = page.locator("canvas").bounding_box()
    assert box is not None
    for share in (0.2, 0.35, 0.55, 0.75):
        page.mouse.click(box["x"] + share * box["width"], box["y"] + 0.5 * box["height"])
    for _ in range(8):
        page.get_by_role("button", name="Reveal a point").click()
    assert page.get_by_role("button", name="Reveal a point").is_disabled()
    values = f"""(() => {{
      const {{ points, shown, hidden }} = {LIVE}, x = [...points.map(([x]) => x), -1.5, 0.1, 1.5];
      return [shown.map(([f]) => x.map((u) => f.at(u))), x.map((u) => hidden.at(u))];
    }})()"""
    drawn, hidden = (np.array(part) for part in page.evaluate(values))
    # On the circle: at its jumps a wave is at either end.
    off = np.abs(drawn - hidden)
    off = np.minimum(off, 1 - off) if kind == "sawtooth" else off
    assert off[:, :12].max() < 1e-3
    if kind == "sawtooth":
        assert off.max() < 1e-3
        assert page.get_by_text("12 points known: one wave is left.").is_visible()
    page.get_by_label("Show the hidden one").check()
    assert page.get_by_text("the hidden function", exact=True).is_visible()
    page.get_by_role("button", name="Another function").click()
    assert page.evaluate(f"{LIVE}.points.length") == 0


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colors_hold(site: Site, open_page: Callable[..., Page], theme: str) -> None:
    page = started(open_page(site.http, "widget.html"))
    page.evaluate(CURVES)
    page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
    page.wait_for_timeout(100)
    contrast = (Path(__file__).parent / "page_contrast.js").read_text(encoding="utf-8")
    assert page.evaluate(contrast) == []
    colors = page.evaluate("""() => ["ground", "ink", "model", "exact"].map((name) =>
      getComputedStyle(document.querySelector("canvas")).getPropertyValue(`--danp-${name}`))""")
    ground, *drawn = [luminance(color) for color in colors]
    for color in drawn:
        lighter, darker = max(color, ground), min(color, ground)
        assert (lighter + 0.05) / (darker + 0.05) > 3.0


def luminance(color: str) -> float:
    digits = color.strip().removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * d for d in digits)
    share = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in share]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_without_webassembly_there_are_fewer_samples(
    site: Site, open_page: Callable[..., Page]
) -> None:
    page = started(open_page(site.file, "widget.html", before=NO_WASM))
    assert len(page.evaluate(CURVES)) == 4
    assert page.evaluate(f"{LIVE}.sampler.model.kernels.simd") is False


def test_a_notebook_s_widget_is_the_same_source(
    site: Site, folder: Path, open_page: Callable[..., Page]
) -> None:
    """What anywidget does: import the module, call render with its model and an element."""
    module = widget_module((folder / "danp-sawtooth.js").read_text(encoding="utf-8"))
    page = open_page(site.http, "empty.html")
    script = """async (module) => {
      const url = URL.createObjectURL(new Blob([module], { type: "text/javascript" }));
      const { render } = (await import(url)).default;
      const values = { model: "danp-sawtooth", points: [[0, 0.5]], samples: 2 }, heard = {};
      let saved = 0;
      const model = {
        get: (key) => values[key],
        set: (key, value) => { values[key] = value; },
        save_changes: () => { saved += 1; },
        on: (event, act) => { heard[event] = act; },
        off: (event) => { delete heard[event]; },
      };
      const el = document.body.appendChild(document.createElement("div"));
      const stop = render({ model, el });
      await el.danp.start();
      values.points = [[0, 0.5], [1, 0.2]]; // set in the notebook
      heard["change:points"]();
      const { curves } = await el.danp.idle();
      const shown = el.querySelectorAll(".danp-point").length;
      const press = new KeyboardEvent("keydown", { key: "Delete" });
      el.querySelectorAll(".danp-point")[0].dispatchEvent(press);
      stop();
      return [curves.length, shown, values.points, saved > 0, Object.keys(heard)];
    }"""
    assert page.evaluate(script, module) == [2, 2, [[1, 0.2]], True, []]


def test_a_model_that_cannot_be_loaded_is_said_so(
    site: Site, folder: Path, browser: Browser
) -> None:
    page = browser.new_page()
    page.goto(f"{site.file}/bare.html")
    page.evaluate("""() => {
      const el = document.body.appendChild(document.createElement("div"));
      const values = { model: "nowhere" };
      const model = { get: (key) => values[key], set() {}, save_changes() {}, on() {} };
      DANP.render({ model, el });
    }""")
    page.get_by_role("button", name="Start the model").click()
    page.get_by_text("nowhere.js cannot be loaded").wait_for()
    assert page.get_by_role("button", name="Start the model").is_visible()
    page.close()


@pytest.mark.parametrize(("name", "title"), [("danp-sawtooth", "sawtooth wave"), ("gp", "gp")])
def test_an_exported_page_offers_its_one_model(
    name: str, title: str, open_page: Callable[..., Page], tmp_path: Path
) -> None:
    prior = Sawtooth() if name == "danp-sawtooth" else None
    export_page(model_named("danp-sawtooth"), name, tmp_path, task_generator=prior)
    page = open_page(tmp_path.as_uri(), "index.html")
    offered = page.get_by_label("Data").locator("option").all_text_contents()
    assert offered == [title]


def test_without_scripts_the_page_says_where_to_look(browser: Browser, tmp_path: Path) -> None:
    nb = json.loads((BOOK / "01-introduction.ipynb").read_text(encoding="utf-8"))
    text = "".join(nb["cells"][0]["source"])
    (tmp_path / "page.html").write_text(text[text.index("<div") :], encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.get_by_text("The figure below").is_visible()
    context.close()


# ---- as the book has it


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("01-introduction", "model"),
        ("03-tasks-and-generators", "widget"),
        ("04-noising", "widget"),
        ("07-denoising", "model"),
    ],
)
def test_chapters_ask_for_what_there_is(name: str, attribute: str) -> None:
    nb = json.loads((BOOK / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in nb["cells"]]
    (asked,) = re.findall(rf'class="danp-live" data-{attribute}="([^"]+)"', "".join(cells))
    offered = {"model": live_page.MODELS, "widget": ("noising", "prior")}
    assert asked in offered[attribute]
    # The next cell has it in a running notebook, and stores nothing of it.
    position = next(i for i, cell in enumerate(cells) if 'class="danp-live"' in cell) + 1
    function = "live_model" if attribute == "model" else f"live_{asked}"
    assert f"    display({function}(" in cells[position]
    assert nb["cells"][position]["outputs"] == []
    assert "remove-cell" in nb["cells"][position]["metadata"]["tags"]


def test_build_writes_the_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "MODELS", ("danp-sawtooth",))
    live_page.write_scripts(tmp_path)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {PAGE_SCRIPT, "danp-sawtooth.js"}
    assert sizes[PAGE_SCRIPT] < 110_000
    assert sizes["danp-sawtooth.js"] < 1_050_000
    posters = (tmp_path / PAGE_SCRIPT).read_text(encoding="utf-8").split("DANP.posters = ")[1]
    shown = json.JSONDecoder().raw_decode(posters)[0]["danp-sawtooth"]
    # What is shown before the start passes through the points that it is shown with.
    for x, y in shown["points"]:
        at = np.abs(np.array(shown["xt"]) - x).argmin()
        misses = [abs(curve[at] - y) for curve in shown["curves"]]
        assert np.median(misses) < 0.06


def test_poster_has_curves_of_a_few_digits() -> None:
    context = PointSet(torch.tensor([[[0.25]]]), torch.tensor([[[0.5]]]))
    shown = live_page.poster(load_pretrained("danp-sawtooth"), context, num_samples=3)
    assert shown["points"] == [[0.25, 0.5]]
    assert [len(curve) for curve in shown["curves"]] == [161] * 3
    assert (shown["xt"][0], shown["xt"][-1]) == (-2.0, 2.0)
    assert shown["curves"][0][7] == round(shown["curves"][0][7], 2)
