"""Layer blocks of real modules: what they cost, what crosses their borders, and which may be split."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.program import Program, parse_program
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.layers_file import check_layers
from gnomon_profiler.program_runs import Runner
from gnomon_profiler.weights import read_weights

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]


def files_of(module: nn.Module, *example: Tensor) -> dict[str, bytes]:
    return capture(module.eval(), example, Description("m"))


def layers_of(module: nn.Module, *example: Tensor) -> Layers:
    return Layers.from_json(json.loads(files_of(module, *example)["layers.json"]))


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.two(torch.relu(self.norm(self.one(x)))))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.stages = nn.Sequential(Residual(8), Residual(8), Residual(8))
        self.head = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        return self.head(self.stages(torch.relu(self.stem(image))).mean((2, 3)))


def test_a_network_of_residuals_has_a_block_for_each() -> None:
    layers = layers_of(Network(), torch.zeros(1, 3, 8, 8))
    assert [block.name for block in layers.blocks] == ["stem", "stages.0", "stages.1", "stages.2", "head"]
    assert all(len(block.reads) == len(block.makes) == 1 and block.splittable for block in layers.blocks)
    # conv 3 → 8, 3 × 3, on 8 × 8: 8·64 sums of 27; two convs 8 → 8; linear 8 → 5.
    assert [block.macs for block in layers.blocks] == [8 * 64 * 27, *[2 * 8 * 64 * 72] * 3, 40]
    assert layers.blocks[0].parameter_bytes == 4 * (8 * 27 + 8)
    assert layers.blocks[1].parameter_bytes == 4 * (2 * (8 * 72 + 8) + 4 * 8)
    assert layers.value_bytes[layers.blocks[0].reads[0]] == 4 * 3 * 64
    assert layers.value_bytes[layers.blocks[0].makes[0]] == 4 * 8 * 64


def test_the_blocks_one_after_the_other_answer_as_the_module() -> None:
    module = Network().eval()
    files = files_of(module, torch.zeros(1, 3, 8, 8))
    layers, program = Layers.from_json(json.loads(files["layers.json"])), parse_program(files["program.json"])
    runner = Runner(program, read_weights(files["weights.safetensors"], program.weights))
    x = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    values = {program.inputs[0]: x}
    for block in layers.blocks:
        values |= runner.run(block.begin, block.end, {name: values[name] for name in block.reads}, 3)
    with torch.inference_mode():
        assert torch.equal(values[program.outputs[0]], module(x))


class Mixes(nn.Module):
    """Its middle looks at other samples, in one of several ways; its ends do not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        match self.how:
            case "mean":
                x = x - x.mean(0, keepdim=True)
            case "softmax":
                x = x.softmax(0)
            case "sum so far":
                x = x.cumsum(0)
            case "neighbour":
                x = x + x.roll(1, 0)
            case "sorted":
                x = x.sort(0)[0]
            case "count":
                x = x / x.new_ones(x.shape).sum(0, keepdim=True)
        return self.last(x)


@pytest.mark.parametrize("how", ["mean", "softmax", "sum so far", "neighbour", "sorted", "count"])
def test_what_mixes_samples_may_not_be_split(how: str) -> None:
    blocks = layers_of(Mixes(how), torch.zeros(1, 6)).blocks
    assert not all(block.splittable for block in blocks)
    assert all(block.splittable for block in layers_of(Mixes("nothing"), torch.zeros(1, 6)).blocks)


class Nearly(nn.Module):
    """Looks at other samples a little."""

    def __init__(self, much: float) -> None:
        super().__init__()
        self.layer, self.much = nn.Linear(6, 6), much

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x + self.much * x.mean(0, keepdim=True)


def test_a_difference_within_rounding_is_accepted_and_recorded_a_larger_one_is_not() -> None:
    small, large = (layers_of(Nearly(much), torch.zeros(1, 6)).blocks for much in (1e-6, 1e-4))
    assert all(block.splittable for block in small)
    assert 0 < max(block.difference for block in small) <= 1e-5
    assert not all(block.splittable for block in large)


def test_windows_that_are_folded_into_the_batch_are_not_cut_open() -> None:
    class Windows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.within, self.after = nn.Linear(16, 16), nn.Linear(4, 4), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            batch = x.shape[0]
            folded = torch.relu(self.within(self.before(x).reshape(batch * 4, 4)))
            return self.after(folded.reshape(batch, 16))

    layers = layers_of(Windows(), torch.zeros(1, 16))
    assert all(block.splittable for block in layers.blocks)
    assert set(layers.value_bytes.values()) == {64}


class Product(nn.Module):
    def __init__(self, how: Any) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.how(x, self.weight)
        return answer


F = nn.functional
IMAGE, ROWS, TOKENS = torch.zeros(1, 4, 6, 6), torch.zeros(1, 6), torch.zeros(1, 5, 6)


@pytest.mark.parametrize(
    ("module", "example", "macs"),
    [
        (nn.Conv2d(4, 6, 3, groups=2), IMAGE, 6 * 16 * 2 * 9),
        (nn.Conv2d(4, 6, 3, padding="same"), IMAGE, 6 * 36 * 4 * 9),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), IMAGE, 4 * 36 * 6 * 9),
        (nn.Conv1d(5, 2, 3), TOKENS, 2 * 4 * 5 * 3),
        (nn.Linear(6, 3), ROWS, 18),
        (nn.Linear(6, 3), TOKENS, 5 * 18),
        (Product(lambda x, w: x @ w), TOKENS, 5 * 36),
        (Product(lambda x, w: torch.addmm(w[0], x, w)), ROWS, 36),
        (Product(lambda x, w: torch.bmm(x, x.transpose(1, 2)) + w[:5, :5]), TOKENS, 5 * 5 * 6),
        (Product(lambda x, w: torch.einsum("bij,jk->bik", x, w)), TOKENS, 5 * 36),
        (
            Product(lambda x, w: F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0] + w[0]),
            TOKENS,
            2 * 25 * 6,
        ),
        (Product(lambda x, w: torch.softmax(x * w[0], -1)), TOKENS, 0),
        (Product(lambda x, w: x + (w @ w)[0]), ROWS, 0),  # once for all samples
    ],
)
def test_multiply_accumulates_per_sample(module: nn.Module, example: Tensor, macs: int) -> None:
    assert layers_of(module, example).macs() == macs


def test_a_model_without_operations_has_no_blocks() -> None:
    assert set(files_of(nn.Identity(), torch.zeros(1, 4))) == {"program.json", "weights.safetensors"}


def test_numbers_that_are_indices_do_not_stand_in_the_way() -> None:
    module = nn.Sequential(nn.Embedding(10, 8), nn.Flatten(), nn.Linear(16, 4))
    assert all(block.splittable for block in layers_of(module, torch.zeros(1, 2, dtype=torch.int64)).blocks)


def test_weights_are_read_back_as_they_were(tmp_path: Path) -> None:
    module = nn.Conv2d(3, 8, 3).eval().to(memory_format=torch.channels_last)
    files = files_of(module, torch.zeros(1, 3, 8, 8))
    weights = read_weights(files["weights.safetensors"], parse_program(files["program.json"]).weights)
    assert torch.equal(weights["weight"], module.weight)
    assert weights["weight"].stride() == module.weight.stride()


@pytest.fixture(scope="module")
def captured() -> tuple[dict[str, Any], bytes, Program]:
    files = files_of(Network(), torch.zeros(1, 3, 8, 8))
    return json.loads(files["layers.json"]), files["program.json"], parse_program(files["program.json"])


def test_blocks_of_this_program_are_taken(captured: tuple[dict[str, Any], bytes, Program]) -> None:
    document, data, program = captured
    assert len(check_layers(json.dumps(document).encode(), data, program).blocks) == 5


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("program_sha256",), "0" * 64),
        (("outputs",), ["other"]),
        (("blocks",), []),
        (("blocks", 0, "operations"), [1, 2]),
        (("blocks", 0, "reads"), []),
        (("blocks", 0, "makes"), []),
        (("blocks", 1, "weights"), []),
        (("blocks", 1, "parameter_bytes"), 1),
        (("blocks", 1, "macs"), -1),
        (("blocks", 1, "macs"), "many"),
        (("value_bytes",), {}),
        (("value_bytes",), []),
        (("format",), "other"),
    ],
)
def test_blocks_that_are_not_this_programs_are_refused(
    captured: tuple[dict[str, Any], bytes, Program], path: tuple[str | int, ...], value: Any
) -> None:
    document, data, program = json.loads(json.dumps(captured[0])), *captured[1:]
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(GnomonError) as caught:
        check_layers(json.dumps(document).encode(), data, program)
    assert (caught.value.status, caught.value.code) == (422, "invalid_layers")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_what_is_no_document_is_refused(captured: tuple[dict[str, Any], bytes, Program], data: bytes) -> None:
    with pytest.raises(GnomonError):
        check_layers(data, *captured[1:])
