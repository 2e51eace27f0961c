"""A scikit-learn estimator as a model to capture, through ONNX: skl2onnx writes it, `onnx_module` reads it.

The estimator comes from a file of skops, whose types must all be known to run no code of the file, or is an object in memory. The
model takes `features`, float32, one row for each sample. A classifier gives `label`, if its classes are whole numbers, and
`probabilities`; the classes are in the details of its signature. A regressor gives `variable`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.packaging import import_package
from gnomon_profiler.catalog import CatalogModel
from gnomon_profiler.extractor import Description
from gnomon_profiler.importing.onnx_file import read_model
from gnomon_profiler.importing.onnx_module import model_of
from gnomon_profiler.importing.sources import SKLEARN, unreadable

MAX_UNPACKED_BYTES = 4 << 30
_OPSETS = {"": 18, "ai.onnx.ml": 3}
"""Operator sets of the conversion: version 3 has trees as `TreeEnsembleClassifier` and `TreeEnsembleRegressor`."""
_INPUT = "features"
DATA_TYPES = (
    "sklearn.tree._tree.Tree",
    "sklearn.neural_network._stochastic_optimizers.AdamOptimizer",
    "sklearn.neural_network._stochastic_optimizers.SGDOptimizer",
)
"""Types of scikit-learn that skops does not trust by default and that hold numbers alone; no estimator is run here."""


def load_skops(name: str, path: Path) -> CatalogModel:
    """The estimator in a file of skops.

    Raises:
        GnomonError: 400 `unsafe_source` for types that skops does not trust; 422 `invalid_skops` for a broken file; 422 as
            `model_of_estimator`.

    """
    skops = import_package("skops.io", SKLEARN)
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        fits = unpacked <= MAX_UNPACKED_BYTES
        unknown = sorted({*map(str, skops.get_untrusted_types(file=path))} - {*DATA_TYPES}) if fits else []
        estimator = skops.load(path, trusted=list(DATA_TYPES)) if fits and not unknown else None
    except Exception as error:  # skops raises many kinds, all of them about the file
        raise _invalid(path, " ".join(str(error).split())[:300] or type(error).__name__) from error
    if unknown:
        raise bad_request(
            "unsafe_source",
            f"{path} holds types whose code would be executed: {', '.join(unknown)[:300]}.",
            "If you trust the file, load it in a function of your own that returns the estimator: --from FILE.py:CALLABLE.",
        )
    if estimator is None:
        raise _invalid(path, f"it unpacks to {unpacked} bytes and at most {MAX_UNPACKED_BYTES} are read")
    return model_of_estimator(estimator, Description(name, details={"weights": f"from {path.name}"}))


def is_estimator(candidate: object) -> bool:
    """True if an object follows scikit-learn's conventions: parameters, and a prediction or a transformation."""
    methods = ("predict", "transform")
    return callable(getattr(candidate, "get_params", None)) and any(callable(getattr(candidate, name, None)) for name in methods)


def model_of_estimator(estimator: Any, description: Description) -> CatalogModel:
    """A fitted estimator as a model to capture.

    Raises:
        GnomonError: 422 `unsupported_model` for one that is not fitted or cannot be written as ONNX.

    """
    kind = type(estimator).__name__
    features = getattr(estimator, "n_features_in_", None)
    if not isinstance(features, int):
        raise _unsupported(
            f"{kind} is not fitted, or does not say how many features it takes (n_features_in_).", "Call fit first."
        )
    converter = import_package("skl2onnx", SKLEARN)
    floats = import_package("skl2onnx.common.data_types", SKLEARN).FloatTensorType([None, features])
    classes = getattr(estimator, "classes_", None)
    options = {id(estimator): {"zipmap": False}} if hasattr(estimator, "predict_proba") else None
    try:
        proto = converter.convert_sklearn(
            estimator,
            initial_types=[(_INPUT, floats)],
            options=options,
            target_opset=_OPSETS,
        )
    except Exception as error:  # skl2onnx raises many kinds, all of them about the estimator
        reason = " ".join(str(error).split())[:300]
        raise _unsupported(
            f"{kind} cannot be written as ONNX: {reason}",
            "Take an estimator that skl2onnx supports, or serve it from a handler (docs/howto).",
        ) from error
    details = dict(description.details or {}) | {"estimator": kind}
    if classes is not None:
        details["labels"] = [str(label) for label in classes]
        if getattr(classes, "dtype", None) is None or classes.dtype.kind not in "iu":
            _drop_labels(proto.graph)
    return model_of(read_model(proto, kind), Description(description.model, description.version, details=details))


def _drop_labels(graph: Any) -> None:
    """Leave out the label where classes are text, which no tensor holds, with what computes it alone."""
    outputs = [output for output in graph.output if not output.name.startswith(("label", "output_label"))]
    del graph.output[:]
    graph.output.extend(outputs)
    needed = {output.name for output in outputs}
    nodes = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            needed |= set(node.input)
            nodes.append(node)
    kept_nodes = [type(node).FromString(node.SerializeToString()) for node in reversed(nodes)]
    del graph.node[:]
    graph.node.extend(kept_nodes)
    constants = [tensor for tensor in graph.initializer if tensor.name in needed]
    constants = [type(constant).FromString(constant.SerializeToString()) for constant in constants]
    del graph.initializer[:]
    graph.initializer.extend(constants)


def _invalid(path: Path, reason: str) -> GnomonError:
    return unreadable("invalid_skops", str(path), reason, "Write the estimator with skops.io.dump(estimator, FILE).")


def _unsupported(message: str, hint: str) -> GnomonError:
    return GnomonError(422, "unsupported_model", message, hint)
