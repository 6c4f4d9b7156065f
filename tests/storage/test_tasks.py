"""Files of tasks; and that the benchmark sets are what was published and say they are."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from danp_lib.data.generators import DATASETS, GaussianProcess, Sawtooth
from danp_lib.data.points import PointSet, Task
from danp_lib.exact.oracles import ORACLES
from danp_lib.storage import tasks as benchmark
from danp_lib.storage.origin import sha256
from danp_lib.storage.tasks import HASHES, benchmark_path, benchmark_tasks, load_tasks, save_tasks

SETS = {dataset: benchmark_tasks(dataset) for dataset in DATASETS}
datasets = pytest.mark.parametrize("dataset", DATASETS)


def pool_of(task: Task) -> PointSet:
    assert task.pool is not None
    return task.pool


@datasets
def test_the_file_is_the_published_one(dataset: str) -> None:
    path = benchmark_path(dataset)
    published = json.loads((path.parent / HASHES).read_text())
    assert set(published) == set(DATASETS)
    assert sha256(path) == published[dataset]


@datasets
def test_ten_tasks_a_context_size(dataset: str) -> None:
    task = SETS[dataset]
    assert task.context.sizes.tolist() == [size for size in range(31) for _ in range(10)]
    assert task.xc.shape == (310, 30, 1)
    assert task.xt.shape == (310, 50, 1)
    assert pool_of(task).x.shape == (310, 512, 1)
    assert task.target.mask.all()
    assert pool_of(task).mask.all()
    assert task.xt.dtype == torch.float32
    padding = ~task.context.mask.unsqueeze(-1)
    assert not task.xc[padding].any()
    assert not task.yc[padding].any()


@datasets
def test_inputs_are_uniform_and_all_different(dataset: str) -> None:
    for x in (real_points(SETS[dataset])[0], SETS[dataset].xt.flatten()):
        assert (x.abs() <= 2).all()
        # Four standard errors of the mean and of the mean square of a uniform number on [-2, 2].
        assert x.mean().abs() < 4 * math.sqrt(4 / 3 / len(x))
        assert (x.square().mean() - 4 / 3).abs() < 4 * math.sqrt(64 / 45 / len(x))
    assert len(SETS[dataset].xt.unique()) > 0.99 * 310 * 50


def real_points(task: Task) -> tuple[Tensor, Tensor]:
    return task.xc[task.context.mask].flatten(), task.yc[task.context.mask].flatten()


def joined(task: Task) -> tuple[Tensor, Tensor]:
    """All real points of one task in order of x, in float64."""
    points = task.context.compact().concat(task.target).concat(pool_of(task))
    order = points.x.flatten().argsort()
    return points.x.flatten()[order].double(), points.y.flatten()[order].double()


@pytest.mark.parametrize("row", range(0, 310, 13))
def test_every_point_of_a_sawtooth_lies_on_one_wave(row: int) -> None:
    x, y = joined(SETS["sawtooth"][row])
    # Between neighbors that no jump separates, the slope is omega d: the same everywhere.
    dx, dy = x.diff(), y.diff()
    slope = (dy / dx)[dy.abs() < 0.25].median()
    assert 2.0 < slope.abs() < 4.0
    # The wave at slope s is y = (s x - psi) mod 1. Refine s from the residuals' own slope.
    for _ in range(3):
        turns = y - slope * x
        residual = torch.remainder(turns - turns[len(x) // 2] + 0.5, 1.0) - 0.5
        slope = slope + (residual * (x - x.mean())).sum() / (x - x.mean()).square().sum()
    turns = y - slope * x
    residual = torch.remainder(turns - turns[len(x) // 2] + 0.5, 1.0) - 0.5
    assert (residual - residual.mean()).abs().max() < 1e-5


@pytest.mark.parametrize("dataset", ["square", "square-released"])
@pytest.mark.parametrize("row", range(0, 310, 13))
def test_every_point_of_a_square_wave_lies_on_one_wave(dataset: str, row: int) -> None:
    x, y = joined(SETS[dataset][row])
    # The text's waves are 0 around x = 0, those of the released code 1.
    assert y[x.abs().argmin()] == float(dataset == "square-released")
    assert set(y.tolist()) == {0.0, 1.0}
    jumps = (y.diff() != 0).nonzero().flatten()
    edges = 0.5 * (x[jumps] + x[jumps + 1])
    slack = (x[jumps + 1] - x[jumps]).max()
    # The edges of one wave are 1 / omega apart, with omega in (1, 3).
    steps = edges.diff()
    assert (steps - steps.mean()).abs().max() < 2 * slack
    assert 1 / 3 - slack < steps.mean() < 1 + slack


@pytest.mark.parametrize(
    ("dataset", "sizes"),
    [("sawtooth", (2, 6)), ("square", (12, 30)), ("square-released", (12, 30))],
)
def test_the_exact_posterior_accepts_the_tasks(dataset: str, sizes: tuple[int, ...]) -> None:
    oracle = ORACLES[dataset]()
    for size in sizes:
        task = SETS[dataset][10 * size : 10 * size + 2]
        per_target = oracle.log_prob(task.context, task.target) / 50
        # What is uncertain costs little of what the floor allows, log(398.9) = 5.989.
        assert (per_target > 5.6).all()
        # A context can leave one pattern of the targets' values, up to the error of the integral.
        assert (per_target < 0.5 * math.log(1e6 / (2 * math.pi)) + 5e-7).all()


def test_gp_values_have_the_kernel_as_their_covariance() -> None:
    pool, prior = pool_of(SETS["gp"]), GaussianProcess()
    x, y = pool.x[:, :150].double(), pool.y[:, :150].double()
    distance = (x - x.mT).abs()
    products = y * y.mT
    for low, high in ((0.0, 0.02), (0.2, 0.3), (0.5, 0.6), (1.5, 2.5)):
        near = (distance > low) & (distance < high)
        # A task is one sample, however many pairs it has.
        per_task = (products * near).sum(dim=(1, 2)) / near.sum(dim=(1, 2))
        expected = (prior.kernel(x, x) * near).sum() / near.sum()
        assert (per_task.mean() - expected).abs() < 4 * per_task.std() / math.sqrt(310)


def test_gp_tasks_are_whitened_by_the_exact_covariance() -> None:
    """Context, targets and pool are jointly one function: their whitened values are standard."""
    task, prior = SETS["gp"], GaussianProcess()
    for row in (0, 155, 309):
        x, y = joined(task[row])
        kernel = prior.kernel(x[None, :, None], x[None, :, None])[0]
        lower = torch.linalg.cholesky(kernel + prior.jitter * torch.eye(len(x)))
        white = torch.linalg.solve_triangular(lower, y.unsqueeze(1), upper=False)
        assert (white.square().mean() - 1).abs() < 5 * math.sqrt(2 / len(x))


def test_a_changed_set_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = benchmark_path("gp")
    changed = bytearray(original.read_bytes())
    changed[-1] ^= 1
    (tmp_path / "gp.safetensors").write_bytes(changed)
    (tmp_path / HASHES).write_text((original.parent / HASHES).read_text())
    monkeypatch.setattr(benchmark, "benchmark_path", lambda _: tmp_path / "gp.safetensors")
    with pytest.raises(ValueError, match="it was changed"):
        benchmark_tasks("gp")


def test_unknown_sets_are_refused_by_name() -> None:
    for function in (benchmark_tasks, benchmark_path):
        with pytest.raises(ValueError, match=r"^dataset .*'sine'"):
            function("sine")


def tasks(pool_size: int = 6) -> Task:
    generator = torch.Generator().manual_seed(0)
    return Sawtooth().sample_task(5, context_size=(0, 4), pool_size=pool_size, generator=generator)


class TestTaskFiles:
    @pytest.mark.parametrize("pool_size", [0, 6])
    def test_round_trip(self, tmp_path: Path, pool_size: int) -> None:
        task = tasks(pool_size)
        save_tasks(tmp_path / "t.safetensors", task, metadata={"generator": "sawtooth"})
        loaded = load_tasks(tmp_path / "t.safetensors")
        assert torch.equal(loaded.context.mask, task.context.mask)
        for name in ("xc", "yc"):
            real = task.context.mask
            assert torch.equal(getattr(loaded, name)[real], getattr(task, name)[real])
        assert torch.equal(loaded.xt, task.xt)
        assert torch.equal(loaded.yt, task.yt)
        if pool_size:
            assert loaded.pool is not None
            assert task.pool is not None
            assert torch.equal(loaded.pool.x, task.pool.x)
            assert torch.equal(loaded.pool.y, task.pool.y)
        else:
            assert loaded.pool is None

    def test_equal_tasks_give_equal_bytes_whatever_the_padding_holds(self, tmp_path: Path) -> None:
        metadata = {f"key{i}": str(i) for i in range(8)}
        contents = set()
        for attempt in range(6):
            task = tasks()
            padding = ~task.context.mask
            task.xc[padding] = math.nan if attempt % 2 else 1.0
            task.yc[padding] = math.inf
            path = tmp_path / f"{attempt}.safetensors"
            save_tasks(path, task, metadata=metadata)
            contents.add(path.read_bytes())
        assert len(contents) == 1

    def test_saving_refuses_what_a_benchmark_cannot_hold(self, tmp_path: Path) -> None:
        path = tmp_path / "t.safetensors"
        task = tasks()
        hidden = PointSet(task.xt, task.yt, torch.zeros(task.yt.shape[:2], dtype=torch.bool))
        with pytest.raises(ValueError, match="target point"):
            save_tasks(path, Task(task.context, hidden))
        with pytest.raises(ValueError, match="pool point"):
            save_tasks(path, Task(task.context, task.target, hidden), metadata={})
        task.yt[0, 0] = math.nan
        with pytest.raises(ValueError, match=r"target\.y"):
            save_tasks(path, task, metadata={})
        not_tasks: Any = task.context
        with pytest.raises(ValueError, match=r"^task must be a Task, got PointSet"):
            save_tasks(path, not_tasks)
        assert not path.exists()

    @pytest.mark.parametrize(
        ("metadata", "says"),
        [
            ({"seed": 3}, r"^metadata\['seed'\] must be a string, got 3\.$"),
            ({3: "seed"}, r"^a key of metadata must be a string, got 3\.$"),
            ("seed", "^metadata must be a Mapping, got str"),
        ],
    )
    def test_metadata_that_are_not_text_are_refused(
        self, tmp_path: Path, metadata: Any, says: str
    ) -> None:
        with pytest.raises(ValueError, match=says):
            save_tasks(tmp_path / "t.safetensors", tasks(), metadata=metadata)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"xt": None}, r"xt, .*, got mask_c, x_pool, xc, y_pool, yc, yt\."),
            ({"extra": torch.zeros(1)}, "got extra, "),
            ({"y_pool": None}, "x_pool, y_pool"),
            ({"yt": torch.zeros(5, 3, 1)}, "y must .*shape"),
            ({"yt": torch.zeros(5, 50, 1, dtype=torch.float64)}, "x and y .*dtype"),
            ({"mask_c": torch.ones(5, 4)}, "mask "),
            ({"yt": torch.full((5, 50, 1), math.nan)}, r"target\.y"),
            ({"y_pool": torch.full((5, 6, 1), math.inf)}, r"pool\.y"),
            ({"xt": torch.zeros(2, 50, 1), "yt": torch.zeros(2, 50, 1)}, "'target': 2"),
        ],
    )
    def test_a_wrong_file_is_refused_by_name(
        self, tmp_path: Path, change: dict[str, Tensor | None], says: str
    ) -> None:
        path = tmp_path / "t.safetensors"
        save_tasks(path, tasks(), metadata={})
        changed = {**load_file(path), **change}
        save_file({key: value for key, value in changed.items() if value is not None}, path)
        with pytest.raises(ValueError, match=says) as caught:
            load_tasks(path)
        assert str(path) in str(caught.value)

    def test_a_file_of_another_kind_and_no_file(self, tmp_path: Path) -> None:
        path = tmp_path / "t.safetensors"
        with pytest.raises(FileNotFoundError, match=r"t\.safetensors"):
            load_tasks(path)
        save_tasks(path, tasks(), metadata={})
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(ValueError, match=r"t\.safetensors"):
            load_tasks(path)


def test_sets_may_be_one_another(tmp_path: Path) -> None:
    x = torch.linspace(0.0, 1.0, 5).reshape(1, 5, 1)
    points = PointSet(x, x.sin())
    save_tasks(tmp_path / "t.safetensors", Task(points, points, points))
    task = load_tasks(tmp_path / "t.safetensors")
    for part in (task.context, task.target, pool_of(task)):
        assert torch.equal(part.x, points.x)
        assert torch.equal(part.y, points.y)
