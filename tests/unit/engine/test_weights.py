"""Weights come from a safetensors file, mapped or copied, and must be what the program says."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gnomon_core.errors import GnomonError
from gnomon_core.program import Weight
from gnomon_profiler.weights import WeightFile
from gnomon_runtime.engine.weights import WeightMode, load_weights
from tests.refusals import refused

pytestmark = pytest.mark.torch
STORED = {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(24.0).view(2, 3, 4), "flag": torch.tensor([True, False])}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(STORED, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


@pytest.fixture
def aligned(tmp_path: Path) -> Path:
    """As the Extractor writes it."""
    weights = WeightFile()
    for name, tensor in STORED.items():
        weights.add(name, tensor)
    (tmp_path / "aligned.safetensors").write_bytes(weights.file_bytes())
    return tmp_path / "aligned.safetensors"


def mapped_bytes(path: Path) -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(int(line.split("-")[1].split()[0], 16) - int(line.split("-")[0], 16) for line in lines if str(path) in line)


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_both_modes_give_the_same_tensors(file: Path, mode: WeightMode) -> None:
    loaded = load_weights(file, {"a": Weight("FP32", (2, 3)), "flag": Weight("BOOL", (2,))}, mode)
    assert set(loaded.tensors) == {"a", "flag"}
    assert torch.equal(loaded.tensors["a"], STORED["a"])
    assert torch.equal(loaded.tensors["flag"], STORED["flag"])
    assert (loaded.mode, loaded.file_bytes) == (mode, file.stat().st_size)
    assert loaded.load_s > 0


def test_shared_maps_the_file_and_private_does_not(aligned: Path) -> None:
    private = load_weights(aligned, {"a": Weight("FP32", (2, 3))}, "private")
    assert mapped_bytes(aligned) == 0
    shared = load_weights(aligned, {"a": Weight("FP32", (2, 3))}, "shared")
    assert mapped_bytes(aligned) >= aligned.stat().st_size
    assert torch.equal(shared.tensors["a"], private.tensors["a"])


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_every_tensor_begins_at_a_cache_line(file: Path, aligned: Path, mode: WeightMode) -> None:
    """Elsewhere kernels give other bits than the module's. A file of another writer is copied where it must be."""
    expected = {"a": Weight("FP32", (2, 3)), "b": Weight("FP32", (2, 3, 4)), "flag": Weight("BOOL", (2,))}
    for path in (file, aligned):
        tensors = load_weights(path, expected, mode).tensors
        assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors.values())
        assert all(torch.equal(tensor, STORED[name]) for name, tensor in tensors.items())


def test_an_order_of_axes_gives_back_the_layout_of_the_capture(file: Path) -> None:
    tensor: Tensor = load_weights(file, {"b": Weight("FP32", (3, 4, 2), order=(2, 0, 1))}).tensors["b"]
    assert tuple(tensor.shape) == (3, 4, 2)
    assert torch.equal(tensor, STORED["b"].permute(1, 2, 0))
    assert tensor.stride() == STORED["b"].permute(1, 2, 0).stride()


@pytest.mark.parametrize("mode", ["shared", "private"])
@pytest.mark.parametrize("weight", [Weight("FP32", (3, 2)), Weight("FP64", (2, 3))])
def test_another_form_than_the_program_states_is_refused(file: Path, mode: WeightMode, weight: Weight) -> None:
    with refused(code="invalid_program", match="'a' must be"):
        load_weights(file, {"a": weight}, mode)


@pytest.mark.parametrize("mode", ["shared", "private"])
def test_a_missing_tensor_or_a_broken_file_is_refused(file: Path, tmp_path: Path, mode: WeightMode) -> None:
    with pytest.raises(GnomonError, match="holds nothing"):
        load_weights(file, {"c": Weight("FP32", (1,))}, mode)
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(GnomonError, match="cannot be read"):
        load_weights(broken, {"a": Weight("FP32", (2, 3))}, mode)
