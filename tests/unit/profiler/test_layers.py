"""From a module to a program with layer blocks: extraction, cuts and detection."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.program import BatchSize, Operation, Program, Value, Weight, parse_program
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_profiler.catalog import UltralyticsNetwork
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.layers import Costs, choose_cuts
from gnomon_profiler.layers_file import Flow, check_layers
from gnomon_profiler.program_runs import Runner
from gnomon_profiler.weights import read_weights
from gnomon_runtime.engine import LoadedProgram, load_program
from tests.refusals import refused

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
    """A model whose middle looks at other samples, in one of several ways; its ends do not."""

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
def test_operator_that_mixes_samples_is_not_split(how: str) -> None:
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
    with refused(422, "invalid_layers"):
        check_layers(json.dumps(document).encode(), data, program)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_invalid_document_is_refused(captured: tuple[dict[str, Any], bytes, Program], data: bytes) -> None:
    with pytest.raises(GnomonError):
        check_layers(data, *captured[1:])


BOXES, CLASSES = 6, 3


class Convolution(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.conv(x))


class Joined(nn.Module):
    def forward(self, given: list[Tensor]) -> Tensor:
        return torch.cat(given, 1)


class Head(nn.Module):
    """A head whose own `forward` decodes boxes: what sizes they have depends on values."""

    def __init__(self, *channels: int) -> None:
        super().__init__()
        self.cv2 = nn.ModuleList(nn.Conv2d(width, BOXES, 1) for width in channels)
        self.cv3 = nn.ModuleList(nn.Sequential(Convolution(width, width), nn.Conv2d(width, CLASSES, 1)) for width in channels)

    def forward(self, features: list[Tensor]) -> Tensor:
        scores = torch.cat([classes(feature).flatten(2) for classes, feature in zip(self.cv3, features, strict=True)], 2)
        return scores.transpose(1, 2)[scores.amax(1) > 0]


def detector() -> tuple[Any, list[nn.Module]]:
    """Two scales, down and up again as a detector's neck goes: its list of layers is what an Ultralytics model has as `model`."""
    torch.manual_seed(0)
    wired: list[tuple[nn.Module, int | list[int]]] = [
        (Convolution(3, 4, stride=2), -1),  # 0: half of the image
        (Convolution(4, 8, stride=2), -1),  # 1: a quarter
        (nn.Upsample(scale_factor=2, mode="nearest"), -1),  # 2
        (Joined(), [-1, 0]),  # 3: 12 channels
        (Convolution(12, 5), -1),  # 4: the fine scale
        (Convolution(8, 7), 1),  # 5: the coarse one, from a layer further back
        (Head(5, 7), [4, 5]),
    ]
    for number, (layer, source) in enumerate(wired):
        layer.i, layer.f = number, source  # type: ignore[assignment]
    layers = [layer for layer, _ in wired]
    return SimpleNamespace(model=nn.Sequential(*layers).eval().requires_grad_(requires_grad=False)), layers


def by_hand(layers: list[nn.Module], image: Tensor) -> dict[str, Tensor]:
    half = layers[0](image)
    quarter = layers[1](half)
    fine, coarse = layers[4](torch.cat([layers[2](quarter), half], 1)), layers[5](quarter)
    head: Any = layers[6]
    return {
        "scale_0": torch.cat([head.cv2[0](fine), head.cv3[0](fine)], 1),
        "scale_1": torch.cat([head.cv2[1](coarse), head.cv3[1](coarse)], 1),
    }


def images(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))


def test_layers_read_what_they_name_and_each_scale_has_boxes_and_scores() -> None:
    made, layers = detector()
    with torch.inference_mode():
        answer, expected = UltralyticsNetwork(made)(images(2)), by_hand(layers, images(2))
    assert {name: tuple(tensor.shape) for name, tensor in answer.items()} == {
        "scale_0": (2, BOXES + CLASSES, 8, 8),
        "scale_1": (2, BOXES + CLASSES, 4, 4),
    }
    for name, tensor in expected.items():
        assert torch.equal(answer[name], tensor), name


def test_detector_is_captured_split_and_bit_equal(tmp_path: Path) -> None:
    network = UltralyticsNetwork(detector()[0]).eval()
    files = capture(network, (torch.zeros(1, 3, 16, 16),), Description("detector", "1", "", {}, ("image",)))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    program = load_program(tmp_path / "program.json", tmp_path / "weights.safetensors")
    assert [spec.name for spec in program.signature.outputs] == ["scale_0", "scale_1"]
    for batch in (1, 3, 8):
        with torch.inference_mode():
            expected = network(images(batch))
        for got, wanted in zip(program.executor.run([images(batch)]), expected.values(), strict=True):
            assert torch.equal(got, wanted)
    layers = Layers.from_json(json.loads(files["layers.json"]))
    assert all(block.splittable for block in layers.blocks)
    assert layers.parameter_bytes() == 4 * sum(weight.numel() for weight in network.parameters())
    assert [block.end for block, _ in pairwise(layers.blocks)] == [other.begin for _, other in pairwise(layers.blocks)]


SPEC = TensorSpec("x", "FP32", (4,))


def program(*operations: tuple[str, str], weights: Sequence[str] = (), inputs: str = "x") -> Program:
    """Operations as (result, "what it reads"); the last result is the output."""
    made = tuple(
        Operation("aten.relu.default", tuple(Value(name) for name in reads.split()), (result,)) for result, reads in operations
    )
    signature = ModelSignature("m", "1", (SPEC,) * len(inputs.split()), (SPEC,))
    return Program(
        "2", "", signature, tuple(inputs.split()), (operations[-1][0],), {name: Weight("FP32", (4,)) for name in weights}, made
    )


def cuts(
    made: Program, macs: Sequence[int], parameters: Sequence[int], sizes: Mapping[str, int] | None = None, without: str = ""
) -> list[int]:
    flow = Flow.of(made)
    names = frozenset(flow.made) - set(without.split())
    return choose_cuts(flow, Costs(macs, parameters, {name: (sizes or {}).get(name, 16) for name in flow.made}, names))


def test_flow_knows_what_crosses_a_border() -> None:
    flow = Flow.of(program(("a", "x"), ("b", "a w"), ("c", "b"), ("d", "a c"), weights=["w"]))
    border = flow.border(1, 3)
    assert (border.reads, border.makes, border.weights) == (("a",), ("c",), ("w",))
    assert set(flow.crossing(2)) == {"a", "b"}
    assert flow.border(0, 4).makes == ("d",)


def test_activations_stay_with_the_layer_before_them() -> None:
    chain = program(
        ("conv1", "x"), ("norm1", "conv1"), ("relu1", "norm1"), ("conv2", "relu1"), ("norm2", "conv2"), ("relu2", "norm2")
    )
    assert cuts(chain, (10, 0, 0, 10, 0, 0), (800, 8, 0, 800, 8, 0)) == [0, 3, 6]


def test_a_normalisation_is_not_cut_off_to_make_a_small_neighbour_larger() -> None:
    chain = program(
        *(
            (f"{kind}{n}", f"conv{n}" if kind == "norm" else f"norm{n - 1}" if n else "x")
            for n in range(80)
            for kind in ("conv", "norm")
        )
    )
    assert all(at % 2 == 0 for at in cuts(chain, (10, 0) * 80, (800, 80) * 80))


def test_a_cut_goes_behind_the_pooling_where_less_crosses() -> None:
    chain = program(("conv1", "x"), ("pool", "conv1"), ("conv2", "pool"))
    assert cuts(chain, (10, 0, 10), (8, 0, 8), {"pool": 4}) == [0, 2, 3]


def test_a_residual_is_one_block() -> None:
    """Between its convolutions two tensors would be alive."""
    body = [("a", "x"), ("a1", "a"), ("a2", "a1"), ("a3", "a a2"), ("b1", "a3"), ("b2", "b1"), ("b3", "a3 b2"), ("c", "b3")]
    assert cuts(program(*body), (10, 10, 10, 0, 10, 10, 0, 10), (8, 8, 8, 0, 8, 8, 0, 8)) == [0, 1, 4, 7, 8]


def test_branches_that_meet_again_are_one_block() -> None:
    stem = [("s1", "x"), ("s2", "s1"), ("s3", "s2")]
    branches = [("one", "s3"), ("two", "s3"), ("three", "s3"), ("cat", "one two three"), ("head", "cat")]
    assert cuts(program(*stem, *branches), (10, 10, 10, 5, 5, 5, 0, 10), (8, 8, 8, 4, 4, 4, 0, 8)) == [0, 1, 2, 3, 7, 8]


def test_where_no_cut_is_narrow_a_model_is_cut_all_the_same() -> None:
    """Everything reads the two values before it, so two tensors cross wherever it is cut."""
    braid = [(f"v{n}", f"v{n - 1} v{n - 2}") for n in range(2, 42)]
    found = cuts(program(*braid, inputs="v0 v1"), [10] * 40, [8] * 40)
    assert 2 <= len(found) - 1 <= 5


def test_a_feature_that_is_only_passed_by_does_not_keep_blocks_together() -> None:
    """A detection backbone: early features are read again by heads at the end, and the blocks between do not touch them."""
    backbone = [("a", "x"), ("b", "a"), ("c", "b"), ("head_a", "a"), ("head_c", "c"), ("out", "head_a head_c")]
    assert cuts(program(*backbone), (10, 10, 10, 10, 10, 0), (8, 8, 8, 8, 8, 0))[:4] == [0, 1, 2, 3]


def test_no_cut_where_a_value_is_not_one_row_for_each_sample() -> None:
    """`folded` holds windows of all samples, `table` belongs to none of them."""
    chain = program(("a", "x"), ("folded", "a"), ("b", "folded"), ("table", "w"), ("c", "b table"), ("d", "c"), weights=["w"])
    assert cuts(chain, (10, 10, 10, 0, 10, 10), (8, 8, 8, 0, 8, 8), without="folded table") == [0, 1, 3, 5, 6]


def test_small_neighbours_are_one_block() -> None:
    many = program(*((f"v{n}", f"v{n - 1}" if n else "x") for n in range(1000)))
    sizes = [end - begin for begin, end in pairwise(cuts(many, [1] * 1000, [1] * 1000))]
    assert 40 <= len(sizes) <= 50
    assert max(sizes) < 60


def test_nothing_without_parameters_stands_alone() -> None:
    chain = program(("a", "x"), ("b", "a"), ("c", "b"), ("d", "c"))
    assert cuts(chain, (10, 10, 10, 10), (0, 8, 0, 8)) == [0, 2, 4]
    assert cuts(chain, (10, 10, 10, 10), (0, 0, 0, 0)) == [0, 1, 2, 3, 4]


def test_a_program_without_work_is_cut_by_its_operations() -> None:
    assert cuts(program(("a", "x"), ("b", "a")), (0, 0), (0, 0)) == [0, 1, 2]


Load = Callable[..., LoadedProgram]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def make(module: nn.Module, *example: Tensor, **described: Any) -> LoadedProgram:
        files = capture(module, example, Description("m", **described))
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        return load_program(tmp_path / "program.json", tmp_path / "weights.safetensors")

    return make


def answers_equally(module: nn.Module, loaded: LoadedProgram, *shapes: tuple[int, ...]) -> None:
    for batch in (1, 2, 3, 8):
        inputs = [torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch)) for shape in shapes]
        with torch.inference_mode():
            expected = module(*(tensor.clone() for tensor in inputs))
        expected = list(expected.values()) if isinstance(expected, dict) else expected
        expected = list(expected) if isinstance(expected, list | tuple) else [expected]
        for _ in range(2):
            for got, want in zip(loaded.executor.run(inputs), expected, strict=True):
                assert torch.equal(got, want)


class InPlace(nn.Module):
    """Everything that functionalising is for: in-place operators on values, on views, and a residual that is read again."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, image: Tensor) -> Tensor:
        x = torch.relu_(self.norm(self.conv(image)))
        kept = x
        half = x[:, :2]
        half.mul_(2.0)
        x = x.add_(kept.clone())
        x += 1.0
        return x.flatten(1)


def test_in_place_operators_become_functional(load: Load) -> None:
    module = InPlace().eval()
    loaded = load(module, torch.zeros(1, 3, 8, 8))
    answers_equally(module, loaded, (3, 8, 8))
    assert [spec.to_json() for spec in loaded.signature.inputs] == [{"name": "image", "datatype": "FP32", "shape": [3, 8, 8]}]
    assert [spec.to_json() for spec in loaded.signature.outputs] == [{"name": "output", "datatype": "FP32", "shape": [256]}]


class Windows(nn.Module):
    """Folds parts of the sample into the batch, as Swin does."""

    def forward(self, x: Tensor) -> Tensor:
        batch, size = x.shape
        folded = x.reshape(batch * 4, size // 4).softmax(-1)
        mixed = folded.view(-1, 4, size // 4).transpose(1, 2)
        return mixed.reshape(batch, size) + torch.arange(size, dtype=torch.float32)


def test_sizes_that_follow_the_batch_hold_at_a_batch_of_one(load: Load, tmp_path: Path) -> None:
    module = Windows()
    answers_equally(module, load(module, torch.zeros(1, 16)), (16,))
    program = parse_program((tmp_path / "program.json").read_bytes())
    sizes = [
        item
        for operation in program.operations
        for argument in operation.args
        if isinstance(argument, tuple)
        for item in argument
    ]
    assert BatchSize(4) in sizes


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.table = torch.tensor([1.0, 2.0, 3.0, 4.0])

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"twice": self.second(self.first(x)), "shifted": x + self.table + torch.tensor(0.5)}


def test_tied_weights_are_kept_once_and_constants_are_lifted(load: Load, tmp_path: Path) -> None:
    module = Tied()
    loaded = load(module, torch.zeros(1, 4))
    answers_equally(module, loaded, (4,))
    assert [spec.name for spec in loaded.signature.outputs] == ["twice", "shifted"]
    weights = parse_program((tmp_path / "program.json").read_bytes()).weights
    assert sum(weight.shape == (4, 4) for weight in weights.values()) == 1


class Two(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = torch.cat([left, right], 1).topk(2)
        return values, indices


class NamedLikeOperators(nn.Module):
    """Top-level tensors with names that torch.export gives to operations' results and inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.5, 0.25, 0.125]).view(3, 1, 1))
        self.register_buffer("b_mean", torch.tensor(2.0))
        self.div = nn.Parameter(torch.tensor([1.5, 2.5, 3.5]).view(3, 1, 1))
        self.embedding = nn.Parameter(torch.randn(10, 3))
        self.x = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x - self.mean) / self.div * self.b_mean
        table = nn.functional.embedding(torch.arange(3), self.embedding)
        return scaled.mean((2, 3)) @ table + scaled.amax((2, 3)) * self.x


def test_tensors_may_be_called_as_operators_and_inputs_are(load: Load) -> None:
    module = NamedLikeOperators().eval()
    answers_equally(module, load(module, torch.zeros(1, 3, 4, 4)), (3, 4, 4))


def test_several_inputs_and_outputs_of_several_types(load: Load) -> None:
    module = Two()
    loaded = load(module, torch.zeros(1, 3), torch.zeros(1, 2), output_names=("values", "indices"))
    answers_equally(module, loaded, (3,), (2,))
    assert [(spec.name, spec.datatype) for spec in loaded.signature.outputs] == [("values", "FP32"), ("indices", "INT64")]


def test_channels_last_weights_keep_their_layout(load: Load) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval().to(memory_format=torch.channels_last)
    answers_equally(module, load(module, torch.zeros(1, 3, 8, 8)), (3, 8, 8))


def test_capturing_leaves_the_module_as_it_was(load: Load) -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.BatchNorm1d(4))
    module.train()
    module[2].eval()
    load(module, torch.zeros(1, 4))
    assert [part.training for part in module] == [True, True, False]


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)


class DataDependent(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x.sum(1) > 0]


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count: Tensor
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x + self.count


class NoBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum(0)


class FixedBatch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.view(2, -1)


class Overwrites(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu_()


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Branches(), "cannot capture"),
        (Random(), "aten.rand"),
        (DataDependent(), "depends on values"),
        (Counter(), "changes 'count'"),
        (NoBatch(), "first axis must be the batch"),
        (FixedBatch(), "cannot capture"),
        (Overwrites(), "changes 'x'"),
    ],
    ids=lambda item: type(item).__name__,
)
def test_unsupported_operator_is_refused_by_name(module: nn.Module, says: str) -> None:
    with pytest.raises(GnomonError, match=says) as caught:
        capture(module, (torch.ones(2, 4),), Description("m"))
    assert (caught.value.status, caught.value.code) == (422, "unsupported_model")
    assert caught.value.hint


def test_the_same_module_gives_the_same_bytes() -> None:
    module = InPlace().eval()
    first = capture(module, (torch.zeros(1, 3, 8, 8),), Description("m"))
    assert capture(module, (torch.zeros(1, 3, 8, 8),), Description("m")) == first
