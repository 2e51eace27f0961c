"""Models get into a repository by name, by the callable that makes them, and by two lines of code; all with layer blocks."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelEntry
from gnomon_profiler import add_from, add_model, ensure_model
from gnomon_profiler.capturing import CaptureRequest, capture_here
from gnomon_profiler.catalog import CatalogModel, UltralyticsNetwork, load_model, load_own
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.names import in_catalog, known_names
from gnomon_profiler.repository import DirectoryRepository
from gnomon_runtime.engine import LoadedProgram, load_program
from tests.refusals import refused

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")]

MINE = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.zeros(1, 4)

class Alone(nn.Module):
    def forward(self, left, right):
        return left * right

ready = nn.Linear(3, 3)

def nothing():
    return 3

def without_example():
    return nn.Linear(3, 3)

drawn = nn.Linear(3, 3).weight

def fails():
    return nn.Linear(3, "three")

def leaves():
    raise SystemExit(0)

def talks():
    import sys
    print("error rate: 0.1, and nothing else", flush=True)
    sys.stdout.buffer.write(b"\\xff\\n")
    sys.stdout.flush()
    return make()

class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0)

def half():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).bfloat16(), torch.zeros(1, 64).bfloat16()

def unseeded():
    module = nn.Linear(3, 3)
    module.weight = drawn
    return module, torch.zeros(1, 3)
"""


@pytest.fixture
def repository(tmp_path: Path) -> DirectoryRepository:
    return DirectoryRepository(tmp_path / "models")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "my_networks.py"
    path.write_text(MINE)
    return path


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(2, 3)

    def forward(self, number: Tensor) -> Tensor:
        return self.rows((number * 100).long())


class Product(nn.Module):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right


def layers_of(entry: ModelEntry) -> Layers:
    assert entry.layers is not None
    return Layers.from_json(json.loads(entry.layers.read_bytes()))


def test_random_weights_tell_inputs_apart_also_where_training_begins_with_zeros() -> None:
    made = load_model("torchvision:vit_b_16")
    first, second = (torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert (made.module(first) - made.module(second)).abs().max() > 0.01


def test_a_module_in_two_lines(tmp_path: Path) -> None:
    entry = add_model(nn.Linear(4, 2), torch.zeros(1, 4), "linear", tmp_path / "models")
    assert DirectoryRepository(tmp_path / "models").get("linear") == entry
    assert (layers_of(entry).macs(), layers_of(entry).parameter_bytes()) == (8, 40)


def test_several_inputs_and_a_version(repository: DirectoryRepository) -> None:
    entry = add_model(
        Product(), (torch.zeros(1, 3), torch.zeros(1, 3)), "both", repository, version="2.1", output_names=["product"]
    )
    assert entry.version == "2.1"
    assert [spec.name for spec in entry.signature.inputs] == ["left", "right"]
    assert [spec.name for spec in entry.signature.outputs] == ["product"]


def test_a_callable_in_a_file(repository: DirectoryRepository, mine: Path) -> None:
    lines: list[str] = []
    entry = add_from(repository, "mine", f"{mine}:make", version="3", progress=lines.append)
    assert (entry.name, entry.version) == ("mine", "3")
    assert [block.name for block in layers_of(entry).blocks] == ["0", "2"]
    assert lines[-1].startswith("mine: storing")


def test_random_weights_are_reproducible(repository: DirectoryRepository, mine: Path) -> None:
    assert add_from(repository, "drawn", f"{mine}:unseeded") == add_from(repository, "drawn", f"{mine}:unseeded")


def test_a_model_of_the_catalog_under_a_name_of_ones_own_in_two_lines(tmp_path: Path) -> None:
    entry = add_from(tmp_path / "models", "small", "torchvision:squeezenet1_1", version="2")
    assert (entry.name, entry.version, entry.signature.kind) == ("small", "2", "image-classification")
    assert entry.signature.details["weights"] == "random, seed 0"
    assert DirectoryRepository(tmp_path / "models").get("small@2") == entry


def test_an_architecture_of_the_catalog_with_weights_of_ones_own(repository: DirectoryRepository, tmp_path: Path) -> None:
    torch.save(load_model("torchvision:squeezenet1_1").module.state_dict(), tmp_path / "mine.pth")
    entry = add_from(repository, "small", "torchvision:squeezenet1_1", weights=tmp_path / "mine.pth")
    assert entry.signature.details["weights"] == "file mine.pth"


@pytest.mark.parametrize("architecture", ["inception_v3", "googlenet"])
def test_a_network_with_weights_of_torchvisions_answers_as_torchvisions_own(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchvision's builder converts ImageNet's mean and deviation, which we name, to those that both were trained with."""
    from torchvision.models import WeightsEnum, get_model  # noqa: PLC0415 - seconds

    drawn = load_model(f"torchvision:{architecture}")
    image = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    downloaded = tmp_path / "downloaded.pth"
    torch.save(drawn.module.state_dict(), downloaded)
    monkeypatch.setattr(WeightsEnum, "get_state_dict", lambda *_, **__: torch.load(downloaded, weights_only=True))
    theirs = get_model(architecture, weights="DEFAULT").eval()
    torch.save(theirs.state_dict(), tmp_path / "saved.pth")
    with torch.inference_mode():
        expected = theirs(image)
        assert not torch.equal(drawn.module(image), expected)
        for file in (downloaded, tmp_path / "saved.pth"):
            made = load_model(f"torchvision:{architecture}", file)
            assert torch.equal(made.module(image), expected)
            assert made.description.details["preprocess"]["mean"] == [255 * mean for mean in (0.485, 0.456, 0.406)]


def test_a_file_without_weights_is_refused_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("no weights")
    torch.save(torch.zeros(3), tmp_path / "tensor.pth")
    torch.save({"fc.weight": torch.zeros(3)}, tmp_path / "other.pth")
    torch.save({1: torch.zeros(3)}, tmp_path / "numbers.pth")
    words_by_file = (
        ("text.pth", r"is no state dict: torch reads no tensors from it\. Write it with torch\.save"),
        ("tensor.pth", "holds Tensor"),
        ("other.pth", "does not fit the architecture: .*Missing key"),
        ("numbers.pth", "does not fit"),
    )
    for file, words in words_by_file:
        with pytest.raises(GnomonError, match=words) as caught:
            load_model("torchvision:squeezenet1_1", tmp_path / file)
        assert (caught.value.status, caught.value.code) == (422, "unsupported_weights")


def test_other_weights_are_another_version_of_an_architecture(repository: DirectoryRepository, tmp_path: Path) -> None:
    name = "torchvision:squeezenet1_1"
    ensure_model(repository, name, own_process=False)
    state = load_model(name).module.state_dict()
    torch.save({key: value + 1 for key, value in state.items()}, tmp_path / "mine.pth")
    with pytest.raises(GnomonError, match="another content") as caught:
        ensure_model(repository, name, weights=tmp_path / "mine.pth", own_process=False)
    assert caught.value.code == "model_exists"
    entry = ensure_model(repository, name, version="2", weights=tmp_path / "mine.pth", own_process=False)
    assert (entry.version, repository.get(name), entry.signature.details["weights"]) == ("2", entry, "file mine.pth")


def test_a_source_of_the_catalog_may_be_short(repository: DirectoryRepository) -> None:
    assert add_from(repository, "squeezenet1_1", "torchvision").signature.details["weights"] == "random, seed 0"


def test_weights_or_shapes_beside_a_model_that_has_its_own_are_refused(
    repository: DirectoryRepository, mine: Path, tmp_path: Path
) -> None:
    weights = tmp_path / "mine.pth"
    with pytest.raises(GnomonError, match="Leave out --weights") as caught:
        ensure_model(repository, "efficientnet-lite0", weights=weights, own_process=False)
    assert caught.value.status == 400
    for source, given in ((f"{mine}:make", {"weights": weights}), ("torchvision:resnet18", {"shapes": [(3, 8, 8)]})):
        with pytest.raises(GnomonError, match="Leave out") as caught:
            add_from(repository, "mine", source, **given)
        assert caught.value.status == 400


def test_a_class_and_the_shapes_of_its_inputs(repository: DirectoryRepository, mine: Path) -> None:
    entry = add_from(repository, "alone", f"{mine}:Alone", shapes=[(3,), (3,)])
    assert [spec.shape for spec in entry.signature.inputs] == [(3,), (3,)]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{}:nothing", "returns int"),
        ("{}:nowhere", "no callable nowhere"),
        ("{}:without_example", "without an example"),
        ("{}.missing.py:make", "No such file"),
        ("no_such_package:make", "No module named"),
        ("neither", "names no callable"),
        ("{}:fails", r"TypeError: .*\(my_networks\.py:24\)"),
        ("{}:leaves", "SystemExit: 0"),
        ("json:loads", r"gives no model: TypeError: loads\(\) missing 1 required positional argument: 's'\. Name"),
    ],
)
def test_a_source_that_gives_no_model_says_why(mine: Path, source: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, mine.stem, sys)  # and taken out again behind the test
    with pytest.raises(GnomonError, match=says) as caught:
        load_own("mine", source.format(mine))
    assert (caught.value.status, caught.value.code) == (400, "invalid_source")


def test_invalid_source_is_reported_and_nothing_is_stored(repository: DirectoryRepository, mine: Path) -> None:
    with pytest.raises(GnomonError, match="returns int") as caught:
        add_from(repository, "mine", f"{mine}:nothing")
    assert (caught.value.status, caught.value.code) == (400, "invalid_source")
    assert list(repository.list()) == []


def test_a_model_whose_answers_depend_on_other_requests_is_refused(
    repository: DirectoryRepository, mine: Path, tmp_path: Path
) -> None:
    """A batch holds requests of different clients: a mean over it carries numbers of one into the answer of another."""
    for file, data in capture(Centred(), (torch.zeros(1, 3),), Description("centred")).items():
        (tmp_path / file).write_bytes(data)
    for add in (
        lambda: capture_here(CaptureRequest("centred", source=f"{mine}:Centred", shapes=((3,),))),
        lambda: capture_here(CaptureRequest("centred", captured=str(tmp_path))),
        lambda: add_model(Centred(), torch.zeros(1, 3), "centred", repository),
    ):
        with refused(422, "unsupported_model", message="mixes the samples of a batch"):
            add()
    assert list(repository.list()) == []


def test_a_model_in_half_precision_is_not_taken_for_one_that_mixes_samples(mine: Path) -> None:
    assert capture_here(CaptureRequest("half", source=f"{mine}:half"))


def test_a_model_whose_inputs_are_indices_is_added_though_random_ones_are_invalid(repository: DirectoryRepository) -> None:
    """A table of two rows fails on most random numbers: what cannot be compared is taken as it is, and not split."""
    entry = add_model(Table(), torch.zeros(1, 1), "table", repository)
    assert [block.splittable for block in layers_of(entry).blocks] == [False]


def test_shapes_that_nothing_can_hold_are_told(mine: Path) -> None:
    with pytest.raises(GnomonError, match=r"invalid shape|memory|overflow") as caught:
        load_own("alone", f"{mine}:Alone", shapes=[(2**40, 2**40)])
    assert caught.value.code == "invalid_source"


def test_output_of_user_code_is_not_an_error(repository: DirectoryRepository, mine: Path) -> None:
    """Output of user code may begin as an error does, and need not be text."""
    assert add_from(repository, "mine", f"{mine}:talks").name == "mine"


def test_a_name_that_none_can_be_is_refused_before_anything_is_captured(repository: DirectoryRepository, tmp_path: Path) -> None:
    with pytest.raises(GnomonError, match="cannot name a model") as caught:
        add_from(repository, "../mine", str(tmp_path / "nowhere.py:make"))
    assert (caught.value.status, caught.value.code) == (400, "invalid_model_name")


def test_program_captured_without_blocks_gets_them(repository: DirectoryRepository, tmp_path: Path) -> None:
    made = capture(nn.Linear(4, 2), (torch.zeros(1, 4),), Description("old"))
    for file in ("program.json", "weights.safetensors"):
        (tmp_path / file).write_bytes(made[file])
    entry = add_from(repository, "old", str(tmp_path))
    assert layers_of(entry).macs() == 8
    (tmp_path / "weights.safetensors").write_bytes(made["weights.safetensors"][:-5])
    with refused(400, "invalid_model"):
        add_from(repository, "cut", str(tmp_path))
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(GnomonError, match=r"no weights\.safetensors"):
        add_from(repository, "old", str(tmp_path))


def test_an_older_entry_of_the_catalog_is_completed(repository: DirectoryRepository) -> None:
    made = capture(nn.Linear(4, 2), (torch.zeros(1, 4),), Description("efficientnet-lite0"))
    old = repository.put("efficientnet-lite0", "1", {file: made[file] for file in ("program.json", "weights.safetensors")})
    entry = ensure_model(repository, "efficientnet-lite0")
    assert (entry.program, entry.weights) == (old.program, old.weights)
    assert layers_of(entry).macs() == 8
    assert ensure_model(repository, "efficientnet-lite0") == entry


@pytest.mark.parametrize(
    "wrap", [torch.nn.utils.parametrizations.weight_norm, torch.nn.utils.parametrizations.spectral_norm, torch.compile]
)
def test_a_module_with_computed_weights_or_compiled_is_captured_as_it_answers(wrap: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 3)
    module = wrap(layer).eval()
    names = sorted(layer.state_dict())
    for file, data in capture(module, (torch.zeros(1, 4),), Description("wrapped")).items():
        (tmp_path / file).write_bytes(data)
    assert sorted(layer.state_dict()) == names, "the caller's module is as it was"
    sample = torch.rand(5, 4)
    (answer,) = load_program(tmp_path / "program.json", tmp_path / "weights.safetensors").executor.run([sample])
    with torch.no_grad():
        torch.testing.assert_close(answer, layer(sample))


def test_a_detector_is_its_backbone_and_head() -> None:
    model = load_model("torchvision:ssd300_vgg16")
    assert model.example[0].shape == (1, 3, 300, 300)
    with torch.inference_mode():
        answer = model.module(model.example[0])
    assert {name: tuple(tensor.shape) for name, tensor in answer.items()} == {
        "bbox_regression": (1, 8732, 4),
        "cls_logits": (1, 8732, 91),
    }
    with pytest.raises(GnomonError, match="proposals"):
        load_model("torchvision:fasterrcnn_mobilenet_v3_large_fpn")


def test_a_model_of_another_licence_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ultralytics.nn.tasks", None)
    assert in_catalog("ultralytics:yolov8x")
    assert "ultralytics:NAME" in known_names()
    with pytest.raises(GnomonError, match=r"pip install .*\[yolo\]") as caught:
        load_model("ultralytics:yolov8x")
    assert (caught.value.status, caught.value.code) == (422, "model_package_missing")


@pytest.mark.parametrize(
    ("name", "giga_macs", "megabytes", "blocks"),
    [("torchvision:resnet18", 1.81, 46.8, (8, 12)), ("torchvision:mobilenet_v2", 0.30, 14.2, (15, 30))],
)
def test_networks_cost_what_is_published(name: str, giga_macs: float, megabytes: float, blocks: tuple[int, int]) -> None:
    model = load_model(name)
    layers = Layers.from_json(json.loads(capture(model.module, model.example, model.description)["layers.json"]))
    assert layers.macs() / 1e9 == pytest.approx(giga_macs, abs=0.01)
    assert layers.parameter_bytes() / 1e6 == pytest.approx(megabytes, abs=0.1)
    assert blocks[0] <= len(layers.blocks) <= blocks[1]
    assert all(block.splittable and block.parameter_bytes for block in layers.blocks)


# Networks of the catalog are captured, fall into blocks that can be split, and answer as their modules do. Images are smaller
# than each network is made for, which changes nothing of its weights, and of its blocks one at most. ResNet50, InceptionV3 and
# EfficientNet-Lite0 have tests of whole pairs, SSD300 one of its benchmark.


def captured(model: CatalogModel, side: int, folder: Path) -> tuple[Layers, LoadedProgram]:
    files = capture(model.module, (torch.zeros(1, 3, side, side),), model.description)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    layers = Layers.from_json(json.loads(files["layers.json"]))
    return layers, load_program(folder / "program.json", folder / "weights.safetensors")


@pytest.mark.parametrize(
    ("name", "side", "blocks"),
    [
        pytest.param("torchvision:resnet101", 64, 32, marks=pytest.mark.slow),
        ("torchvision:vgg16", 32, 15),
        ("torchvision:vgg19", 32, 17),
        pytest.param("torchvision:efficientnet_b5", 64, 36, marks=pytest.mark.slow),
        pytest.param("torchvision:vit_b_16", 224, 26, marks=pytest.mark.slow),
        ("efficientnet-lite1", 64, 26),
        ("efficientnet-lite2", 64, 26),
    ],
)
def test_a_network_is_captured_and_split(name: str, side: int, blocks: int, tmp_path: Path) -> None:
    model = load_model(name)
    layers, program = captured(model, side, tmp_path)
    held = [*model.module.parameters(), *(buffer for buffer in model.module.buffers() if buffer.is_floating_point())]
    assert len(layers.blocks) == blocks
    assert all(block.splittable for block in layers.blocks)
    assert layers.parameter_bytes() == 4 * sum(tensor.numel() for tensor in held)
    for batch in (1, 3):
        images = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(batch))
        with torch.inference_mode():
            expected = model.module(images)
        [answer] = program.executor.run([images])
        assert expected.any()
        assert (answer - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.slow
def test_a_detector_of_ultralytics_is_captured_where_its_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing here installs it: its licence is the AGPL. Its own head is told what ours reads, and computes the same."""
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    if importlib.util.find_spec("ultralytics") is None:
        pytest.skip("the extra yolo is not installed")
    model = load_model("ultralytics:yolov8x")
    layers, program = captured(model, 64, tmp_path)
    assert all(block.splittable for block in layers.blocks)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        expected = model.module(images)
    for name, answer in zip(expected, program.executor.run([images]), strict=True):
        assert torch.equal(answer, expected[name]), name

    detector = importlib.import_module("ultralytics.nn.tasks").DetectionModel("yolov8x.yaml", verbose=False).eval()
    head, given = detector.model[-1], []
    head.register_forward_pre_hook(lambda _, arguments: given.extend(arguments[0]))
    with torch.inference_mode():
        detector(images)
        ours = UltralyticsNetwork(detector).eval()(images)
        for number, (feature, boxes, classes) in enumerate(zip(given, head.cv2, head.cv3, strict=True)):
            assert torch.equal(ours[f"scale_{number}"], torch.cat([boxes(feature), classes(feature)], 1))
