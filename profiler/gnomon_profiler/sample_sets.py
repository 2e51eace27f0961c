"""Sample inputs of a model, on which precisions are compared, and labelled ones, on which their accuracy is measured.

    validation.npz, a file of a model's entry     one array for each input, by its name, and `labels`: the class of each sample
    samples.npz, a file of a model's entry        the inputs alone
    neither                                       crops of the photographs that scikit-image ships, or random numbers

Arrays have the samples as first axis, prepared as the model takes them. The array of a model with one input may be `samples`.
Files come from users: nothing in them is unpickled, and their sizes are read before their numbers.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gnomon_core.errors import GnomonError
from gnomon_core.example_inputs import example_inputs
from gnomon_core.program import Program
from gnomon_core.signature import ModelSignature, TensorSpec

if TYPE_CHECKING:
    import numpy as np

VALIDATION, SAMPLES = "validation.npz", "samples.npz"
LABELS = "labels"
ONLY_INPUT = "samples"
KEPT_SAMPLES = 64
"""Samples that agreement is measured on: one that differs among them is less than bf16's limit."""
MAX_BYTES = 2 << 30
"""The most bytes of a file's arrays, unpacked."""
_PHOTOGRAPHS = (
    "astronaut.png",
    "camera.png",
    "chelsea.png",
    "coffee.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "rocket.jpg",
)
_LEAST_CROP = 0.6
_SEED = 0


@dataclass(frozen=True, slots=True)
class SampleSet:
    """Inputs in the order of the signature. `labels` are the right classes; None where there are none. `source` is for users."""

    inputs: tuple[Any, ...]
    source: str
    labels: Any = None

    def __len__(self) -> int:
        return len(self.inputs[0])


def read_samples(path: Path | IO[bytes], signature: ModelSignature, *, labelled: bool) -> SampleSet:
    """The samples in a file, checked against the model's signature.

    Raises:
        GnomonError: 422 `invalid_validation` of a labelled set, or `invalid_samples`, with what is wrong.

    """
    import numpy as np  # noqa: PLC0415 - optional for importers of this module

    code = "invalid_validation" if labelled else "invalid_samples"

    def refuse(reason: str) -> GnomonError:
        hint = (
            "numpy.savez(FILE, samples=…, labels=…): samples as the model takes them, and the number of the right class of each."
        )
        return GnomonError(422, code, f"The {'validation set' if labelled else 'samples file'} {reason}.", hint)

    try:
        _check_size(path, refuse)
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, Any] = {name: file[name] for name in file.files}
    except GnomonError:
        raise
    except Exception as error:  # noqa: BLE001 - a hostile file may break its reader anywhere
        raise refuse(f"is no .npz file of plain arrays: {str(error)[:200]}") from None
    labels = arrays.pop(LABELS, None)
    if len(signature.inputs) == 1 and ONLY_INPUT in arrays and signature.inputs[0].name not in arrays:
        arrays[signature.inputs[0].name] = arrays.pop(ONLY_INPUT)
    names = [spec.name for spec in signature.inputs]
    if set(arrays) != set(names):
        raise refuse(f"has the arrays {', '.join(sorted(arrays)) or 'none'}; the model's inputs are {', '.join(names)}")
    inputs = tuple(_checked(arrays[spec.name], spec, refuse) for spec in signature.inputs)
    counts = {len(array) for array in inputs}
    if counts == {0}:
        raise refuse("is empty")
    if len(counts) > 1:
        raise refuse(f"has inputs of different numbers of samples: {', '.join(map(str, sorted(counts)))}")
    kind = getattr(path, "name", str(path))
    if not labelled:
        return SampleSet(inputs, f"{Path(str(kind)).name}, {len(inputs[0])} samples")
    return SampleSet(inputs, f"{len(inputs[0])} labelled samples", _checked_labels(labels, len(inputs[0]), signature, refuse))


def classes_of(signature: ModelSignature) -> int:
    """The number of classes that the model gives scores of; 0 where it gives none."""
    return 0 if signature.scores is None else signature.outputs[signature.scores].shape[0]


def _check_size(path: Path | IO[bytes], refuse: Any) -> None:
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
    if size > MAX_BYTES:
        raise refuse(f"has {size} bytes unpacked; {MAX_BYTES} are allowed")
    if not isinstance(path, Path):
        path.seek(0)


def _checked(array: np.ndarray[Any, Any], spec: TensorSpec, refuse: Any) -> Any:
    import numpy as np  # noqa: PLC0415

    if array.dtype.kind not in "biuf":
        raise refuse(f"has {array.dtype} as {spec.name}, which are no numbers")
    if array.ndim != 1 + len(spec.shape) or array.shape[1:] != tuple(spec.shape):
        shape = "×".join(map(str, array.shape))
        raise refuse(f"has {spec.name} of {shape}; a sample has {'×'.join(map(str, spec.shape)) or 'one number'}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise refuse(f"has values in {spec.name} that are no numbers")
    return np.ascontiguousarray(array.astype(spec.numpy_type))


def _checked_labels(labels: Any, count: int, signature: ModelSignature, refuse: Any) -> Any:
    classes = classes_of(signature)
    if not classes:
        raise refuse("is of a model whose outputs have no scores of classes, so that no answer is right or wrong")
    if labels is None:
        raise refuse(f"has no array `{LABELS}`")
    if labels.dtype.kind not in "iu" or labels.shape != (count,):
        raise refuse(f"has labels of {labels.dtype} {labels.shape}; {count} whole numbers are needed")
    if labels.min() < 0 or labels.max() >= classes:
        raise refuse(f"has labels from {labels.min()} to {labels.max()}; the model has {classes} classes")
    return labels.astype("int64")


def sample_set(program: Program, files: Mapping[str, Path]) -> SampleSet:
    """The samples that precisions are compared on: the model's own, its validation set's, photographs, or random numbers.

    Raises:
        GnomonError: 422: a file of the entry cannot be read.

    """
    signature = program.signature
    if SAMPLES in files:
        samples = read_samples(files[SAMPLES], signature, labelled=False)
        return SampleSet(
            tuple(array[:KEPT_SAMPLES] for array in samples.inputs), f"{SAMPLES}, {min(len(samples), KEPT_SAMPLES)} samples"
        )
    if VALIDATION in files:
        samples = read_samples(files[VALIDATION], signature, labelled=True)
        chosen = _spread(len(samples))
        return SampleSet(tuple(array[chosen] for array in samples.inputs), f"{VALIDATION}, {len(chosen)} samples")
    crops = _crops(signature)
    if crops is not None:
        return crops
    return SampleSet(tuple(example_inputs(program, KEPT_SAMPLES)), f"{KEPT_SAMPLES} samples of random numbers")


def _spread(count: int) -> list[int]:
    """Up to `KEPT_SAMPLES` samples, evenly through a set that may be sorted by class."""
    kept = min(count, KEPT_SAMPLES)
    return [number * count // kept for number in range(kept)]


def _crops(signature: ModelSignature) -> SampleSet | None:
    """Crops of scikit-image's photographs, prepared as the model takes them; None for a model of other inputs, or without it."""
    prepare = signature.details.get("preprocess")
    if not isinstance(prepare, Mapping) or len(signature.inputs) != 1 or not all(map(find_spec, ("skimage", "PIL"))):
        return None
    spec = signature.inputs[0]
    mean, std = prepare.get("mean"), prepare.get("std")
    if len(spec.shape) != 3 or spec.shape[0] != 3 or mean is None or std is None:  # noqa: PLR2004 - channels, height, width
        return None
    import numpy as np  # noqa: PLC0415
    import skimage  # noqa: PLC0415
    from PIL import Image  # noqa: PLC0415

    folder, rng = Path(skimage.__file__).parent / "data", np.random.default_rng(_SEED)
    images = [Image.open(folder / name).convert("RGB") for name in _PHOTOGRAPHS if (folder / name).is_file()]
    if not images:
        return None
    height, width = spec.shape[1:]
    crops = []
    for number in range(KEPT_SAMPLES):
        image = images[number % len(images)]
        side = int(min(image.size) * rng.uniform(_LEAST_CROP, 1))
        left, top = (int(rng.integers(0, extent - side + 1)) for extent in image.size)
        crop = image.crop((left, top, left + side, top + side)).resize((width, height), Image.Resampling.BICUBIC)
        crops.append(((np.asarray(crop, "float32") - mean) / std).astype("float32").transpose(2, 0, 1))
    return SampleSet((np.stack(crops),), f"{KEPT_SAMPLES} crops of photographs of scikit-image {version('scikit-image')}")


def write_samples(samples: SampleSet, signature: ModelSignature, path: Path) -> None:
    """Write the inputs, for a process that measures."""
    import numpy as np  # noqa: PLC0415

    labels = {} if samples.labels is None else {LABELS: samples.labels}
    np.savez(path, **{spec.name: array for spec, array in zip(signature.inputs, samples.inputs, strict=True)}, **labels)
