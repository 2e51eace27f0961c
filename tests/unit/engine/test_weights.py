"""Weights come from a safetensors file and are what the program says; a Shadow holds those of its blocks and no others."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gnomon_core.errors import GnomonError
from gnomon_core.program import Weight
from gnomon_profiler.weights import WeightFile
from gnomon_runtime.engine.weights import BlockWeights, WeightMode, load_weights
from tests.refusals import refused

pytestmark = pytest.mark.torch
STORED = {"a": torch.arange(6.0).view(2, 3), "b": torch.arange(24.0).view(2, 3, 4), "flag": torch.tensor([True, False])}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(STORED, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


@pytest.fixture
def aligned(tmp_path: Path) -> Path:
    """A file of weights as the extractor writes it."""
    weights = WeightFile()
    for name, tensor in STORED.items():
        weights.add(name, tensor)
    (tmp_path / "aligned.safetensors").write_bytes(weights.file_bytes())
    return tmp_path / "aligned.safetensors"


def mapped_bytes(path: Path, field: str = "Size") -> int:
    """Of this process's mappings of a file, as the kernel counts them."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(path))
        elif inside and line.startswith(f"{field}:"):
            total += int(line.split()[1]) * 1024
    return total


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


BLOCK_BYTES = 4 << 20
MODES: list[WeightMode] = ["shared", "private"]


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    """Eight tensors of 4 MiB, one of no elements, and a small one of whole numbers."""
    made = {f"w{index}": torch.full((1024, 1024), float(index)) for index in range(8)}
    return made | {"nothing": torch.empty(0, 3), "steps": torch.arange(5)}


@pytest.fixture
def tensors_file(tensors: dict[str, Tensor], tmp_path: Path) -> Path:
    save_file(tensors, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def described(tensors: Mapping[str, Tensor]) -> dict[str, Weight]:
    kinds = {torch.float32: "FP32", torch.int64: "INT64"}
    return {name: Weight(kinds[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}


@pytest.mark.parametrize("mode", MODES)
def test_held_block_weights_equal_the_file(tensors_file: Path, tensors: dict[str, Tensor], mode: WeightMode) -> None:
    weights = BlockWeights(tensors_file, described(tensors), mode)
    weights.hold(["w3", "steps", "nothing"])
    weights.hold(["w5", "w3"])
    assert set(weights.held) == {"w3", "w5", "steps", "nothing"}
    whole = load_weights(tensors_file, described(tensors)).tensors
    assert all(torch.equal(tensor, whole[name]) and tensor.shape == whole[name].shape for name, tensor in weights.held.items())


def test_shared_weights_are_resident_and_only_those_that_are_held(tensors_file: Path, tensors: dict[str, Tensor]) -> None:
    weights = BlockWeights(tensors_file, described(tensors))
    assert mapped_bytes(tensors_file, "Rss") == 0
    weights.hold(["w1", "w2"])
    # The kernel maps some neighbouring pages with each one it is asked for.
    assert 2 * BLOCK_BYTES <= mapped_bytes(tensors_file, "Rss") < 2.5 * BLOCK_BYTES
    assert 2 * BLOCK_BYTES <= weights.resident_bytes <= 2 * BLOCK_BYTES + 3 * 4096
    weights.keep_only(["w2"])
    assert BLOCK_BYTES <= mapped_bytes(tensors_file, "Rss") < 1.5 * BLOCK_BYTES
    assert torch.equal(weights.held["w2"], tensors["w2"])


def test_private_weights_go_back_to_the_kernel(tensors_file: Path, tensors: dict[str, Tensor]) -> None:
    def anonymous() -> int:
        return sum(
            int(line.split()[1]) * 1024
            for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
            if line.startswith("Anonymous:")
        )

    weights = BlockWeights(tensors_file, described(tensors), "private")
    before = anonymous()
    weights.hold([f"w{index}" for index in range(4)])
    weights.hold([f"w{index}" for index in range(4, 8)])
    full = anonymous() - before
    assert 0.9 * 8 * BLOCK_BYTES < full < 1.2 * 8 * BLOCK_BYTES
    weights.keep_only(["w5"])
    assert anonymous() - before < 0.7 * full
    assert mapped_bytes(tensors_file, "Size") == 0


@pytest.mark.parametrize("mode", MODES)
def test_tensors_at_odd_places_are_copied_to_even_ones(tmp_path: Path, mode: WeightMode) -> None:
    tensors_file = tmp_path / "odd.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}).encode()
    tensors_file.write_bytes(len(header).to_bytes(8, "little") + header + b"x" + torch.tensor([1.5, 2.5]).numpy().tobytes())
    weights = BlockWeights(tensors_file, {"a": Weight("FP32", (2,))}, mode)
    weights.hold(["a"])
    assert weights.held["a"].tolist() == [1.5, 2.5]
    assert weights.held["a"].data_ptr() % 64 == 0


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{",
        b'{"a": 1}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}',
        b'{"a": {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F31", "shape": [2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0]}}',
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, header: bytes) -> None:
    tensors_file = tmp_path / "bad.safetensors"
    for length in (len(header), 0, 1 << 62):
        tensors_file.write_bytes(length.to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(GnomonError, match="cannot be read"):
            BlockWeights(tensors_file, {"a": Weight("FP32", (2,))})


def test_a_tensor_that_is_missing_or_of_another_form_is_refused(tensors_file: Path) -> None:
    weights = BlockWeights(tensors_file, {"w1": Weight("FP32", (7,)), "w9": Weight("FP32", (1,))})
    for name in ("w1", "w9"):
        with pytest.raises(GnomonError, match=name):
            weights.hold([name])
    assert weights.held == {}
