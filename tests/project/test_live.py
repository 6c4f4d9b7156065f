"""The model in the page: its numbers against torch, and its widget under a mouse and a keyboard."""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil
import signal
import subprocess
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
from danp_lib.models.danp import DANP
from danp_lib.storage.checkpoint import read_header
from danp_lib.storage.pretrained import load_pretrained, pretrained_path
from danp_lib.storage.web import PAGE_SCRIPT, export_web, pack, page_script, source

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

wasmtime = pytest.importorskip("wasmtime")

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
KINDS = ("no context", "two points", "two points at one input", "30 points")
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
    """Points of the model's own prior."""
    prior = read_header(pretrained_path(name)).task_generator
    assert prior is not None
    size = {"no context": 0, "30 points": 30}.get(kind, 2)
    context = prior.sample_task(
        1, context_size=size, generator=torch.Generator().manual_seed(3)
    ).context
    return context.concat(context[:, :1]) if "one input" in kind else context


def walk(model: DANP, context: PointSet, inputs: Any, noise: Any, xt: Tensor) -> dict[str, Any]:
    """Auxiliary sets, the clean level's Gaussian, and the mean of every noisy level."""
    found = model.denoise(
        model.prepare(context), inputs, lambda level, p: p.transform(noise[level - 1]), xt
    )
    answer = {
        "sets": by_sample(*(points.y for points in found.auxiliary)),
        "means": by_sample(found.target.loc),
        "variances": by_sample(found.target.cov_diag),
        "factors": by_sample(found.target.cov_factor),
    }
    for level in range(1, model.num_levels + 1):
        answer[f"level {level}"] = by_sample(
            torch.cat(
                [
                    model(context, [points[[s]] for points in found.auxiliary], xt, level).loc
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
        [x.double() for x in inputs],
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
def kernel() -> tuple[np.ndarray, dict[str, Callable[..., None]]]:
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
    for name in {*MODELS, "danp-square"}:
        prior = read_header(pretrained_path(name)).task_generator
        export_web(load_pretrained(name), made / f"{name}.js", task_generator=prior)
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,">'
    body = '<div class="danp-live" data-model="danp-sawtooth" data-controls="full"></div>'
    scripts = f'<script src="{PAGE_SCRIPT}"></script>'
    (made / "widget.html").write_text(f"{head}{body}{scripts}", encoding="utf-8")
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
