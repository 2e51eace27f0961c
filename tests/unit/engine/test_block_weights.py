"""A Shadow holds the weights of its blocks and nothing else, resident before it says so, and lets go of them block by block."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from gnomon_core.errors import GnomonError
from gnomon_core.program import Weight
from gnomon_runtime.engine.weights import BlockWeights, WeightMode, load_weights

pytestmark = pytest.mark.torch
BLOCK_BYTES = 4 << 20
MODES: list[WeightMode] = ["shared", "private"]


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    """Eight tensors of 4 MiB, one of no elements, and a small one of whole numbers."""
    made = {f"w{index}": torch.full((1024, 1024), float(index)) for index in range(8)}
    return made | {"nothing": torch.empty(0, 3), "steps": torch.arange(5)}


@pytest.fixture
def file(tensors: dict[str, Tensor], tmp_path: Path) -> Path:
    save_file(tensors, tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def described(tensors: Mapping[str, Tensor]) -> dict[str, Weight]:
    kinds = {torch.float32: "FP32", torch.int64: "INT64"}
    return {name: Weight(kinds[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()}


def mapped_bytes(file: Path, field: str) -> int:
    """Of this process's mappings of a file, as the kernel counts them."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(file))
        elif inside and line.startswith(f"{field}:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.parametrize("mode", MODES)
def test_held_block_weights_equal_the_file(file: Path, tensors: dict[str, Tensor], mode: WeightMode) -> None:
    weights = BlockWeights(file, described(tensors), mode)
    weights.hold(["w3", "steps", "nothing"])
    weights.hold(["w5", "w3"])
    assert set(weights.held) == {"w3", "w5", "steps", "nothing"}
    whole = load_weights(file, described(tensors)).tensors
    assert all(torch.equal(tensor, whole[name]) and tensor.shape == whole[name].shape for name, tensor in weights.held.items())


def test_shared_weights_are_resident_and_only_those_that_are_held(file: Path, tensors: dict[str, Tensor]) -> None:
    weights = BlockWeights(file, described(tensors))
    assert mapped_bytes(file, "Rss") == 0
    weights.hold(["w1", "w2"])
    # The kernel maps some neighbouring pages with each one it is asked for.
    assert 2 * BLOCK_BYTES <= mapped_bytes(file, "Rss") < 2.5 * BLOCK_BYTES
    assert 2 * BLOCK_BYTES <= weights.resident_bytes <= 2 * BLOCK_BYTES + 3 * 4096
    weights.keep_only(["w2"])
    assert BLOCK_BYTES <= mapped_bytes(file, "Rss") < 1.5 * BLOCK_BYTES
    assert torch.equal(weights.held["w2"], tensors["w2"])


def test_private_weights_go_back_to_the_kernel(file: Path, tensors: dict[str, Tensor]) -> None:
    def anonymous() -> int:
        return sum(
            int(line.split()[1]) * 1024
            for line in Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
            if line.startswith("Anonymous:")
        )

    weights = BlockWeights(file, described(tensors), "private")
    before = anonymous()
    weights.hold([f"w{index}" for index in range(4)])
    weights.hold([f"w{index}" for index in range(4, 8)])
    full = anonymous() - before
    assert 0.9 * 8 * BLOCK_BYTES < full < 1.2 * 8 * BLOCK_BYTES
    weights.keep_only(["w5"])
    assert anonymous() - before < 0.7 * full
    assert mapped_bytes(file, "Size") == 0


@pytest.mark.parametrize("mode", MODES)
def test_tensors_at_odd_places_are_copied_to_even_ones(tmp_path: Path, mode: WeightMode) -> None:
    file = tmp_path / "odd.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]}}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + b"x" + torch.tensor([1.5, 2.5]).numpy().tobytes())
    weights = BlockWeights(file, {"a": Weight("FP32", (2,))}, mode)
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
    file = tmp_path / "bad.safetensors"
    for length in (len(header), 0, 1 << 62):
        file.write_bytes(length.to_bytes(8, "little") + header + bytes(8))
        with pytest.raises(GnomonError, match="cannot be read"):
            BlockWeights(file, {"a": Weight("FP32", (2,))})


def test_a_tensor_that_is_missing_or_of_another_form_is_refused(file: Path) -> None:
    weights = BlockWeights(file, {"w1": Weight("FP32", (7,)), "w9": Weight("FP32", (1,))})
    for name in ("w1", "w9"):
        with pytest.raises(GnomonError, match=name):
            weights.hold([name])
    assert weights.held == {}
