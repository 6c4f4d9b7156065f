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
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from danp_lib.data.points import PointSet
from danp_lib.exact.gp import GaussianProcessOracle
from danp_lib.models.danp import DANP, ancestral
from danp_lib.storage.checkpoint import read_header
from danp_lib.storage.pretrained import load_pretrained, pretrained_path
from danp_lib.storage.web import PAGE_SCRIPT, export_web, pack, page_script, source, widget_module

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
"""In units of y: float32 in another order, through F + 1 passes."""

MODELS = ("danp-sawtooth", "danp-f2-sawtooth", "danp-square", "danp-gp")
KINDS = ("no context", "two points", "two points at one input", "30 points", "off the prior")
XT = torch.linspace(-2.0, 2.0, 41)
SAMPLES = 2


class Case(NamedTuple):
    """What goes into one prediction, what torch makes of it, and how far its rounding may reach."""

    given: dict[str, Any]
    expected: dict[str, Any]
    rounding: dict[str, float]


@functools.cache
def rounded(name: str) -> DANP:
    """The model with the weights that the page has."""
    model = copy.deepcopy(load_pretrained(name))
    model.load_state_dict({key: pack(w).float() for key, w in model.state_dict().items()})
    return model.eval()


def context_for(name: str, kind: str) -> PointSet:
    """Points of the model's own prior, or such as it has never seen, which conditioning softens."""
    if kind == "off the prior":
        return PointSet(torch.tensor([[[-0.9], [0.7]]]), torch.tensor([[[0.3], [0.8]]]))
    prior = read_header(pretrained_path(name)).task_generator
    assert prior is not None
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
    xt = XT[None, :, None]
    expected = walk(model, context, inputs, noise, xt)
    exact = walk(
        copy.deepcopy(model).double(),
        PointSet(context.x.double(), context.y.double()),
        inputs.double(),
        noise,
        xt.double(),
    )
    draws = zip(by_sample(*inputs), by_sample(*noise), strict=True)
    given = {
        "context": {"x": context.x.flatten().tolist(), "y": context.y.flatten().tolist()},
        "xt": XT.tolist(),
        "draws": [{"inputs": x, "noise": e} for x, e in draws],
    }
    return Case(given, expected, differences(expected, exact))


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
    """Compare a page's answers with torch's.

    Both round to float32 in their own order, and conditioning on many points can magnify that:
    what torch's rounding does to its own answer, the page's may do too.
    """
    for kind, answer in zip(KINDS, answers, strict=True):
        made = case(name, kind)
        found = differences(answer, made.expected)
        for what, difference in found.items():
            assert difference < TOLERANCE + 2 * made.rounding[what], (kind, what, found)
        assert max(made.rounding.values()) < 10 * TOLERANCE


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
        prior = read_header(pretrained_path(name)).task_generator
        export_web(load_pretrained(name), made / f"{name}.js", task_generator=prior)
    head = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">'
        '<meta name="viewport" content="width=device-width">'
    )
    body = '<div class="danp-live" data-model="danp-sawtooth" data-controls="full"></div>'
    scripts = f'<script src="{PAGE_SCRIPT}"></script>'
    (made / "widget.html").write_text(f"{head}{body}{scripts}", encoding="utf-8")
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
      const { mean, sd } = DANP.exactGP({ x, y }, xt, 0.25);
      return [Array.from(mean), Array.from(sd)];
    }"""
    mean, sd = np.array(page.evaluate(script, given))
    exact = GaussianProcessOracle(variance_floor=1e-12).predict(
        context, XT[None, :, None], diagonal=True
    )
    np.testing.assert_allclose(mean, exact.mean.flatten(), atol=1e-6)
    np.testing.assert_allclose(sd, exact.variance.sqrt().flatten(), atol=1e-5)


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
    box = page.locator("canvas").bounding_box()
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
        page.evaluate("document.activeElement.ariaLabel")
    )
    page.keyboard.press("Delete")
    assert page.evaluate(f"{LIVE}.points.length") == 2
    assert page.evaluate("document.activeElement.className") == "danp-point"


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
    assert page.evaluate(f"{LIVE}.answer.exact.sd.length") == 257
    assert page.get_by_text("exact posterior").is_visible()
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


@pytest.mark.parametrize("name", ["01-introduction", "06-denoising"])
def test_chapters_ask_for_a_model_that_the_build_writes(name: str) -> None:
    nb = json.loads((BOOK / f"{name}.ipynb").read_text(encoding="utf-8"))
    text = "".join("".join(cell["source"]) for cell in nb["cells"])
    (model,) = re.findall(r'class="danp-live" data-model="([^"]+)"', text)
    assert model in live_page.MODELS


def test_build_writes_the_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_page, "MODELS", ("danp-sawtooth",))
    live_page.write_scripts(tmp_path)
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {PAGE_SCRIPT, "danp-sawtooth.js"}
    assert sizes[PAGE_SCRIPT] < 100_000
    assert sizes["danp-sawtooth.js"] < 1_050_000
    posters = (tmp_path / PAGE_SCRIPT).read_text(encoding="utf-8").split("DANP.posters = ")[1]
    shown = json.JSONDecoder().raw_decode(posters)[0]["danp-sawtooth"]
    # What is shown before the start passes through the points that it is shown with.
    for x, y in shown["points"]:
        at = np.abs(np.array(shown["xt"]) - x).argmin()
        misses = [abs(curve[at] - y) for curve in shown["curves"]]
        assert np.median(misses) < 0.06
