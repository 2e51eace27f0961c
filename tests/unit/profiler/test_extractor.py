"""Any module becomes a program that answers as it does, or is refused with the names of what stands in the way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnomon_core.errors import GnomonError
from gnomon_core.program import BatchSize, parse_program
from gnomon_profiler.extractor import Description, capture
from gnomon_runtime.engine import LoadedProgram, load_program

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]
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
