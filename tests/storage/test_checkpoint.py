"""Checkpoints round-trip; what was changed, is unknown or does not fit is refused with its reason.

Invariant 11.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save, save_file
from small_models import MODELS as BUILDERS
from small_models import TINY
from torch import Tensor, nn

from danp_lib._config import to_dict
from danp_lib._files import split_header
from danp_lib.data.generators import GaussianProcess, Prior, Sawtooth, TaskGenerator
from danp_lib.data.observations import Observations
from danp_lib.data.points import PointSet
from danp_lib.data.scaling import IDENTITY, Scaling
from danp_lib.fitting.fitted import Fitted, load_fitted
from danp_lib.models.convnp import ConvCNP, ConvGNP, ConvNPConfig
from danp_lib.models.registry import MODELS, config_class
from danp_lib.storage.checkpoint import (
    CheckpointError,
    load_checkpoint,
    read_header,
    save_checkpoint,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a good checkpoint."""
    path = tmp_path_factory.mktemp("whole") / "model.safetensors"
    save_checkpoint(path, BUILDERS["danp"](), task_generator=Sawtooth(), provenance={"steps": 3})
    return path.read_bytes()


def forged(data: bytes, **changes: Any) -> bytes:
    """The checkpoint with other metadata (None leaves a key out), its SHA-256 made to fit."""
    header, _ = split_header(data)
    metadata = {k: v for k, v in (header["__metadata__"] | changes).items() if v is not None}
    return signed(load(data), metadata)


def signed(tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> bytes:
    data = save(tensors, metadata | {"sha256": "0" * 64})
    digest = hashlib.sha256(data).hexdigest()
    return data.replace(b'"sha256":"' + b"0" * 64, b'"sha256":"' + digest.encode())


def assert_refused(path: Path, data: bytes, message: str) -> None:
    path.write_bytes(data)
    for read in (load_checkpoint, read_header) if "tensors" not in message else (load_checkpoint,):
        with pytest.raises(CheckpointError, match=message) as caught:
            read(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_model_survives_to_the_bit(name: str, tmp_path: Path) -> None:
    model = BUILDERS[name]()
    path = tmp_path / "model.safetensors"
    generator = GaussianProcess(noise=0.1, length_scale=0.5)
    save_checkpoint(path, model, task_generator=generator, provenance={"seed": 7})
    loaded = load_checkpoint(path)
    assert type(loaded) is type(model)
    assert loaded.name == name
    assert loaded.config == model.config
    assert not loaded.training
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[k], theirs[k]) for k in ours)
    header = read_header(path)
    assert (header.model, header.config) == (name, model.config)
    assert header.task_generator == generator
    assert header.provenance == {"seed": 7}


def test_a_loaded_model_predicts_the_same(tmp_path: Path) -> None:
    model = ConvGNP(TINY).eval()
    save_checkpoint(tmp_path / "m", model)
    context = PointSet(torch.tensor([[[0.5], [-1.0]]]), torch.tensor([[[1.0], [0.0]]]))
    xt = torch.linspace(-2, 2, 9).reshape(1, 9, 1)
    ours, theirs = (m.predict(context, xt) for m in (model, load_checkpoint(tmp_path / "m")))
    assert torch.equal(ours.mean, theirs.mean)
    assert torch.equal(ours.covariance_matrix, theirs.covariance_matrix)
    assert read_header(tmp_path / "m").task_generator is None


@pytest.mark.parametrize("device", ["tpu", "cuda:99"])
def test_a_device_that_there_is_not_is_refused(device: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "m", BUILDERS["convcnp"]())
    with pytest.raises(ValueError, match=rf"^device must be one of this machine, got '{device}': "):
        load_checkpoint(tmp_path / "m", device=device)


def test_equal_models_give_equal_bytes_and_loading_draws_nothing(tmp_path: Path) -> None:
    model = BUILDERS["danp"]()
    contents = set()
    for i in range(5):
        provenance = {"b": 1, "a": 2} if i % 2 else {"a": 2, "b": 1}
        save_checkpoint(tmp_path / f"{i}", model, provenance=provenance)
        contents.add((tmp_path / f"{i}").read_bytes())
    assert len(contents) == 1
    before = torch.get_rng_state()
    load_checkpoint(tmp_path / "0")
    assert torch.equal(torch.get_rng_state(), before)


@given(st.data())
def test_any_changed_bit_is_refused(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    _, start = split_header(whole)
    # The header is short beside the tensors: half of the flips go there.
    places = st.integers(0, start - 1) | st.integers(start, len(whole) - 1)
    place, bit = data.draw(places), data.draw(st.integers(0, 7))
    flipped = bytearray(whole)
    flipped[place] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.write_bytes(flipped)
    with pytest.raises(CheckpointError, match=r"changed|format"):
        load_checkpoint(path)


def test_a_changed_byte_of_the_header_is_refused(whole: bytes, tmp_path: Path) -> None:
    _, start = split_header(whole)
    path = tmp_path / "m"
    for place in range(0, start, 37):
        for other in (b" ", b"0", b"\t"):
            if whole[place : place + 1] != other:
                path.write_bytes(whole[:place] + other + whole[place + 1 :])
                with pytest.raises(CheckpointError):
                    read_header(path)


@pytest.mark.parametrize("kept", [0, 7, 8, 100, -1])
def test_a_truncated_file_is_refused(whole: bytes, tmp_path: Path, kept: int) -> None:
    assert_refused(tmp_path / "m", whole[:kept], "was changed")


def test_an_extended_file_is_refused(whole: bytes, tmp_path: Path) -> None:
    assert_refused(tmp_path / "m", whole + b"\0", "was changed")


def test_a_scaling_is_saved_with_the_model(tmp_path: Path) -> None:
    scaling = Scaling(x_offset=1990.0, x_unit=0.5, y_offset=20.0, y_unit=4.0)
    model = ConvGNP(TINY)
    Fitted(model, scaling, provenance={"note": "mine"}).save(tmp_path / "own")
    assert load_fitted(tmp_path / "own").scaling == scaling
    assert read_header(tmp_path / "own").provenance["note"] == "mine"
    save_checkpoint(tmp_path / "plain", model)
    assert load_fitted(tmp_path / "plain").scaling == IDENTITY
    save_checkpoint(tmp_path / "bad", model, provenance={"scaling": {"x_offset": 0.0}})
    with pytest.raises(CheckpointError, match=r"bad: scaling\.x_unit"):
        load_fitted(tmp_path / "bad")


@pytest.mark.parametrize("provenance", [{"a": object()}, {"a": float("nan")}, {1: 2, "a": 3}, 3])
def test_what_json_cannot_hold_is_refused_as_provenance(provenance: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^provenance must "):
        save_checkpoint(tmp_path / "m", ConvGNP(TINY), provenance=provenance)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("key", ["fit", "held_out", "layout", "scaling", "season"])
@pytest.mark.parametrize("value", [0.2, "winter", ["a"]])
def test_fields_that_a_fitted_model_reads_are_objects(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"^provenance\.{key} must be a Mapping, got "):
        save_checkpoint(tmp_path / "m", ConvGNP(TINY), provenance={key: value})
    assert not list(tmp_path.iterdir())


def test_contexts_of_training_are_no_free_field(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^provenance must not hold contexts.*got 'x'\.$"):
        save_checkpoint(tmp_path / "m", ConvGNP(TINY), provenance={"contexts": "x"})


def test_other_files_are_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "m", b"not a checkpoint at all", "safetensors file")
    save_file({"x": torch.zeros(1)}, tmp_path / "plain")
    with pytest.raises(CheckpointError, match=r"plain: the format .*None"):
        load_checkpoint(tmp_path / "plain")
    with pytest.raises(FileNotFoundError, match="missing"):
        load_checkpoint(tmp_path / "missing")


def config(**changes: Any) -> str:
    values = {"num_levels": 2, "beta": 0.1, "num_auxiliary": 50, "base": {"rank": 4}}
    return json.dumps(values | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "danp_lib/2"}, "format .*'danp_lib/2'"),
        ({"format": None}, "format .*None"),
        ({"model": "none"}, "model .*'none'"),
        ({"model": None}, "lack model"),
        ({"config": config(depth=3)}, r"config\.depth"),
        ({"config": config(beta="0.1")}, r"config\.beta .*'0\.1'"),
        ({"config": config(beta=2.0)}, r"config\.beta .*2\.0"),
        ({"generator": '{"name": "sine"}'}, r"generator .*name and config.*'sine'"),
        (
            {"generator": '{"name": "gp", "config": {"noise": -1.0}}'},
            r"generator\.config\.noise",
        ),
        ({"generator": "[]"}, r"generator .*\[\]"),
    ],
)
def test_metadata_that_do_not_fit_are_refused(
    whole: bytes, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    assert_refused(tmp_path / "m", forged(whole, **changes), message)


def test_a_forged_file_is_accepted_where_it_fits(whole: bytes, tmp_path: Path) -> None:
    """The refusals above are for their reason, not for the way the files were made."""
    (tmp_path / "m").write_bytes(forged(whole))
    assert load_checkpoint(tmp_path / "m").name == "danp"


def test_tensors_of_another_configuration_are_refused(whole: bytes, tmp_path: Path) -> None:
    values = json.loads(split_header(whole)[0]["__metadata__"]["config"])
    wider = values | {"base": values["base"] | {"channels": 16}}
    path = tmp_path / "m"
    assert_refused(path, forged(whole, config=json.dumps(wider)), r"tensors .*\(16, .*got \(")
    deeper = values | {"base": values["base"] | {"num_layers": 4}}
    assert_refused(path, forged(whole, config=json.dumps(deeper)), "tensors .*core.* got None")
    as_baseline = forged(whole, model="convgnp", config=json.dumps(values["base"]))
    assert_refused(path, as_baseline, "tensors .*convgnp")


def test_missing_unexpected_and_misshapen_tensors_are_refused(whole: bytes, tmp_path: Path) -> None:
    metadata = split_header(whole)[0]["__metadata__"]
    tensors = load(whole)
    key = "core.encoder.log_scale"
    path = tmp_path / "m"
    fewer = {k: v for k, v in tensors.items() if k != key}
    assert_refused(path, signed(fewer, metadata), rf"tensors .*{key} must be .*got None\.")
    more = tensors | {"extra": torch.zeros(1)}
    assert_refused(path, signed(more, metadata), r"tensors .*extra must be absent, got .*\.")
    longer = tensors | {key: torch.zeros(4)}
    assert_refused(path, signed(longer, metadata), rf"tensors .*{key} .*\(3,\).*\(4,\)")
    double = tensors | {key: tensors[key].double()}
    assert_refused(path, signed(double, metadata), rf"tensors .*{key} .*float32.*float64")


def test_a_failing_write_keeps_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    save_checkpoint(path, BUILDERS["convcnp"]())
    old = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, BUILDERS["danp"]())
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


def test_weights_that_are_not_finite_float32_are_not_saved(tmp_path: Path) -> None:
    model = BUILDERS["convcnp"]()
    with pytest.raises(ValueError, match=r"core\..*float64"):
        save_checkpoint(tmp_path / "m", model.double())
    model.float()
    next(model.parameters()).data.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"core\..* 1 values"):
        save_checkpoint(tmp_path / "m", model)
    assert not list(tmp_path.iterdir())


def test_only_registered_classes_are_saved(tmp_path: Path) -> None:
    class Own(ConvCNP):
        """A subclass, which would come back as its parent."""

    with pytest.raises(ValueError, match=r"^model .*Own .*'convcnp'"):
        save_checkpoint(tmp_path / "m", Own(replace(TINY, rank=0)))


@dataclass(frozen=True)
class Lines(Prior):
    """A prior of one's own: straight lines."""

    steepest: float = 1.0

    def sample_outputs(self, x: Tensor, *, generator: torch.Generator) -> Tensor:
        slope = torch.randn((len(x), 1, 1), dtype=torch.float64, generator=generator)
        return self.steepest * slope * x


class Tilted(Sawtooth):
    """A prior derived from one of the library's."""


@pytest.mark.parametrize(
    "own",
    [Lines(noise=0.1, steepest=2.0), Tilted(noise=0.1), Lines(domain=((0.0, 1.0), (0.0, 2.0)))],
)
def test_a_prior_of_ones_own_is_saved_and_found_by_its_class(
    own: TaskGenerator, tmp_path: Path
) -> None:
    path = tmp_path / "m"
    save_checkpoint(path, BUILDERS["convcnp"](), task_generator=own)
    assert load_checkpoint(path).name == "convcnp"
    unknown = read_header(path)
    assert unknown.task_generator is None
    assert unknown.generator is not None
    assert unknown.generator["name"] == type(own).__name__
    assert unknown.generator["config"]["noise"] == own.noise
    known = read_header(path, task_generators=[Lines, Tilted])
    assert type(known.task_generator) is type(own)
    assert known.task_generator == own
    # The library's are known without.
    save_checkpoint(path, BUILDERS["convcnp"](), task_generator=GaussianProcess())
    assert read_header(path, task_generators=[Lines]).task_generator == GaussianProcess()


def test_a_table_that_was_trained_on_is_kept_as_its_digest(tmp_path: Path) -> None:
    x = torch.linspace(-1.0, 1.0, 3).reshape(1, 3, 1)
    observed = Observations(table=PointSet(x, x))
    save_checkpoint(tmp_path / "m", BUILDERS["convcnp"](), task_generator=observed)
    header = read_header(tmp_path / "m")
    assert header.task_generator is None
    assert header.generator == {"name": "observations", "config": to_dict(observed)}


def test_a_prior_does_not_take_the_name_of_another(tmp_path: Path) -> None:
    class Taken(Sawtooth):
        name = "gp"

    with pytest.raises(ValueError, match=r"^task_generator .*'gp'.*Taken"):
        save_checkpoint(tmp_path / "m", BUILDERS["convcnp"](), task_generator=Taken())
    odd: Any = Sawtooth
    with pytest.raises(ValueError, match=r"^task_generator must be a TaskGenerator, got the class"):
        save_checkpoint(tmp_path / "m", BUILDERS["convcnp"](), task_generator=odd)
    assert not list(tmp_path.iterdir())


def test_a_class_in_the_table_is_loaded_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "line", _Line)
    assert config_class("line") is _LineConfig
    save_checkpoint(tmp_path / "m", _Line(_LineConfig(3)))
    assert load_checkpoint(tmp_path / "m").config == _LineConfig(3)


def test_what_could_not_be_loaded_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Silent(_Line):
        def __init__(self, config) -> None:  # type: ignore[no-untyped-def]
            super().__init__(config)

    monkeypatch.setitem(MODELS, "line", Silent)
    with pytest.raises(ValueError, match=r"^config of Silent.__init__ must be annotated"):
        save_checkpoint(tmp_path / "m", Silent(_LineConfig(3)))
    monkeypatch.setitem(MODELS, "line", _Line)
    other = _Line(_LineConfig(3))
    other.config = ConvNPConfig()  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"^config of a line must be a _LineConfig, got ConvNP"):
        save_checkpoint(tmp_path / "m", other)
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class _LineConfig:
    width: int


class _Line(nn.Module):
    name = "line"

    def __init__(self, config: _LineConfig) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.zeros(config.width))
