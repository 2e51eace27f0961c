"""Validation sets and samples come from users: what cannot be used is refused with what is wrong."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.program import Program
from gnomon_core.signature import NUMPY_TYPES, ModelSignature, TensorSpec
from gnomon_profiler import sample_sets
from gnomon_profiler.sample_sets import KEPT_SAMPLES, SAMPLES, VALIDATION, read_samples, sample_set

IMAGE = ModelSignature("m", "1", (TensorSpec("image", "FP32", (3, 4, 4)),), (TensorSpec("logits", "FP32", (5,)),))
TWO = ModelSignature(
    "m", "1", (TensorSpec("a", "FP32", (2,)), TensorSpec("b", "INT64", ())), (TensorSpec("scores", "FP32", (2,)),)
)
MAP = ModelSignature("m", "1", IMAGE.inputs, (TensorSpec("map", "FP32", (5, 4, 4)),))

LABELLED = ModelSignature("m", "1", IMAGE.inputs, (TensorSpec("label", "INT64", ()), TensorSpec("probabilities", "FP32", (5,))))


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "set.npz"
    np.savez(path, **arrays)
    return path


def program(signature: ModelSignature) -> Program:
    names = tuple(spec.name for spec in signature.inputs), tuple(spec.name for spec in signature.outputs)
    return Program("2", "0", signature, *names, {}, ())


def images(count: int) -> Any:
    return np.random.default_rng(0).random((count, 3, 4, 4), dtype=np.float32)


def test_labelled_samples_are_read_as_the_model_takes_them(tmp_path: Path) -> None:
    found = read_samples(saved(tmp_path, samples=images(6).astype("float64"), labels=np.arange(6) % 5), IMAGE, labelled=True)
    assert (len(found), found.inputs[0].dtype, found.labels.tolist()) == (6, np.float32, [0, 1, 2, 3, 4, 0])
    two = saved(tmp_path, a=np.zeros((3, 2)), b=np.array([1, 2, 3]), labels=np.array([0, 1, 1], "uint8"))
    assert [array.shape for array in read_samples(two, TWO, labelled=True).inputs] == [(3, 2), (3,)]


@pytest.mark.parametrize(
    ("outputs", "scores"),
    [(IMAGE.outputs, 0), (LABELLED.outputs, 1), (MAP.outputs, None), ((MAP.outputs[0], IMAGE.outputs[0]), None),
     ((TensorSpec("value", "FP32", ()), IMAGE.outputs[0]), None), ((LABELLED.outputs[0],), None)],
)  # fmt: skip
def test_scores_of_classes_are_the_first_output_or_behind_a_label(outputs: Any, scores: int | None) -> None:
    assert ModelSignature("m", "1", IMAGE.inputs, outputs).scores == scores


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
def test_samples_keep_every_datatype_of_the_protocol(tmp_path: Path, datatype: str) -> None:
    signature = ModelSignature("m", "1", (TensorSpec("x", datatype, (2,)),), MAP.outputs)
    values = np.array([[0, 1], [1, 0]], NUMPY_TYPES[datatype])
    found = read_samples(saved(tmp_path, x=values), signature, labelled=False).inputs[0]
    assert (found.dtype, found.tolist()) == (values.dtype, values.tolist())
    assert sample_set(program(signature), {}).inputs[0].dtype == values.dtype


@pytest.mark.parametrize(
    ("signature", "arrays", "reason"),
    [
        (IMAGE, {"samples": images(0), "labels": np.zeros(0, int)}, "is empty"),
        (IMAGE, {}, "has the arrays none; the model's inputs are image"),
        (IMAGE, {"labels": np.zeros(2, int)}, "has the arrays none"),
        (IMAGE, {"samples": images(2)}, "has no array `labels`"),
        (IMAGE, {"samples": images(2), "labels": np.zeros(3, int)}, "2 whole numbers are needed"),
        (IMAGE, {"samples": images(2), "labels": np.array([0.0, 1.0])}, "labels of float64"),
        (IMAGE, {"samples": images(2), "labels": np.array([0, 5])}, "labels from 0 to 5; the model has 5 classes"),
        (IMAGE, {"samples": images(2), "labels": np.array([-1, 0])}, "labels from -1 to 0"),
        (IMAGE, {"samples": images(2)[:, :2], "labels": np.zeros(2, int)}, "has image of 2×2×4×4; a sample has 3×4×4"),
        (IMAGE, {"samples": images(2) * np.nan, "labels": np.zeros(2, int)}, "values in image that are no numbers"),
        (IMAGE, {"samples": np.array(["a", "b"]), "labels": np.zeros(2, int)}, "which are no numbers"),
        (IMAGE, {"samples": images(2), "other": images(2), "labels": np.zeros(2, int)}, "the model's inputs are image"),
        (TWO, {"a": np.zeros((3, 2)), "b": np.zeros(2), "labels": np.zeros(3, int)}, "different numbers of samples: 2, 3"),
        (LABELLED, {"samples": images(2), "labels": np.array([0, 5])}, "labels from 0 to 5; the model has 5 classes"),
        (MAP, {"samples": images(2), "labels": np.zeros(2, int)}, "no scores of classes"),
    ],
)
def test_set_that_cannot_be_used_is_refused_with_what_is_wrong(
    tmp_path: Path, signature: ModelSignature, arrays: dict[str, Any], reason: str
) -> None:
    with pytest.raises(GnomonError) as refused:
        read_samples(saved(tmp_path, **arrays), signature, labelled=True)
    assert (refused.value.status, refused.value.code) == (422, "invalid_validation")
    assert reason in refused.value.message
    assert "numpy.savez" in refused.value.hint


class Evil:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("code in a validation set ran",))


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 broken", pickle.dumps(Evil())])
def test_file_that_is_no_archive_is_refused_and_nothing_in_it_runs(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "set.npz"
    path.write_bytes(content)
    with pytest.raises(GnomonError, match=r"no \.npz file"):
        read_samples(path, IMAGE, labelled=True)


def test_objects_in_arrays_are_refused_and_do_not_run(tmp_path: Path) -> None:
    hostile = saved(tmp_path, samples=np.array([Evil()], dtype=object), labels=np.zeros(1, int))
    with pytest.raises(GnomonError, match=r"no \.npz file"):
        read_samples(hostile, IMAGE, labelled=True)


def test_archive_that_grows_too_large_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_sets, "MAX_BYTES", 1 << 20)
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples.npy", bytes(2 << 20))
    assert path.stat().st_size < 1 << 14
    with pytest.raises(GnomonError, match="unpacked"):
        read_samples(path, IMAGE, labelled=True)


def test_samples_come_from_the_entry_before_anything_else(tmp_path: Path) -> None:
    validation, samples = tmp_path / "validation.npz", tmp_path / "samples.npz"
    np.savez(validation, samples=images(100), labels=np.arange(100) % 5)
    np.savez(samples, samples=images(7))
    assert sample_set(program(IMAGE), {}).source == f"{KEPT_SAMPLES} samples of random numbers"
    assert len(sample_set(program(IMAGE), {VALIDATION: validation})) == KEPT_SAMPLES
    both = sample_set(program(IMAGE), {VALIDATION: validation, SAMPLES: samples})
    assert (len(both), both.source) == (7, "samples.npz, 7 samples")


def test_models_of_images_are_compared_on_photographs() -> None:
    pytest.importorskip("skimage", reason="the extra models is not installed")
    details = {"preprocess": {"size": 32, "mean": [127.0] * 3, "std": [128.0] * 3}}
    signature = ModelSignature("m", "1", (TensorSpec("image", "FP32", (3, 32, 32)),), IMAGE.outputs, "", details)
    found = sample_set(program(signature), {})
    assert (len(found), found.inputs[0].shape) == (KEPT_SAMPLES, (KEPT_SAMPLES, 3, 32, 32))
    assert "photographs of scikit-image" in found.source
    assert np.array_equal(found.inputs[0], sample_set(program(signature), {}).inputs[0])
    assert -1.0 <= found.inputs[0].min() < found.inputs[0].max() <= 1.01
