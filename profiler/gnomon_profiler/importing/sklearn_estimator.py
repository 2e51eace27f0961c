"""A scikit-learn estimator as a model to capture, through ONNX: skl2onnx writes it, `onnx_module` reads it.

The estimator comes from a file of skops, whose types must all be known to run no code of the file, or is an object in memory. The
model takes `features`, float32, one row for each sample. A classifier gives `label`, if its classes are whole numbers, and
`probabilities`, or `scores` where it has none; the classes are in the details of its signature. A regressor gives `variable`.

skl2onnx ignores some settings, such as the weights of neighbours by distance. So the model is compared with the estimator before
it is captured.
"""

from __future__ import annotations

import copy
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

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
        GnomonError: 422 `unsupported_model` for one that is not fitted, cannot be written as ONNX, or answers otherwise there.

    """
    estimator = getattr(estimator, "best_estimator_", estimator)  # of a search
    kind = type(estimator).__name__
    features = getattr(estimator, "n_features_in_", None)
    if not isinstance(features, int):
        raise _unsupported(
            f"{kind} is not fitted, or does not say how many features it takes (n_features_in_).", "Call fit first."
        )
    converter = import_package("skl2onnx", SKLEARN)
    floats = import_package("skl2onnx.common.data_types", SKLEARN).FloatTensorType([None, features])
    classes = getattr(estimator, "classes_", None)
    if getattr(estimator, "flatten_transform", False):
        # Of a voting classifier: skl2onnx knows the other value alone, and this one matters for `transform` alone.
        estimator = copy.copy(estimator)
        estimator.flatten_transform = False
    try:
        proto = converter.convert_sklearn(
            estimator,
            initial_types=[(_INPUT, floats)],
            options=_options(estimator),
            target_opset=_OPSETS,
            custom_conversion_functions=_converters(),
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
    if not hasattr(estimator, "predict_proba"):
        _rename(proto.graph, "probabilities", "scores")
    model = model_of(read_model(proto, kind), Description(description.model, description.version, details=details))
    _check_answers(estimator, model)
    return model


def _options(estimator: Any) -> dict[Any, dict[str, Any]]:
    """Options of the conversion: probabilities as one tensor, and distances as one operator instead of a loop."""
    neighbors, processes = import_package("sklearn.neighbors", SKLEARN), import_package("sklearn.gaussian_process", SKLEARN)
    by_distance = (
        neighbors.KNeighborsClassifier,
        neighbors.KNeighborsRegressor,
        neighbors.RadiusNeighborsClassifier,
        neighbors.RadiusNeighborsRegressor,
        processes.GaussianProcessClassifier,
        processes.GaussianProcessRegressor,
    )
    options: dict[Any, dict[str, Any]] = {kind: {"optim": "cdist"} for kind in by_distance}
    last = estimator.steps[-1][1] if hasattr(estimator, "steps") else estimator
    name = import_package("skl2onnx._supported_operators", SKLEARN).sklearn_operator_name_map.get(type(last))
    converter = import_package("skl2onnx.common._registration", SKLEARN).get_converter(name) if name else None
    if converter is not None and "zipmap" in (converter.get_allowed_options() or {}):
        options[id(estimator)] = {"zipmap": False}
    return options


def _converters() -> dict[Any, Any]:
    """Converters in place of skl2onnx's: its histogram gradient boosting gives booleans, which newer versions of onnx refuse."""
    ensemble = import_package("sklearn.ensemble", SKLEARN)
    registered = import_package("skl2onnx.common._registration", SKLEARN)
    names = {
        ensemble.HistGradientBoostingClassifier: "SklearnHistGradientBoostingClassifier",
        ensemble.HistGradientBoostingRegressor: "SklearnHistGradientBoostingRegressor",
    }
    return {kind: _with_numbers(registered.get_converter(name)) for kind, name in names.items()}


def _with_numbers(convert: Any) -> Any:
    """A converter whose nodes have 0 and 1 in place of booleans."""

    def converted(scope: Any, operator: Any, container: Any) -> None:
        add_node = container.add_node

        def add(*arguments: Any, **attributes: Any) -> Any:
            for name, value in attributes.items():
                if isinstance(value, list) and any(isinstance(item, bool) for item in value):
                    attributes[name] = [int(item) for item in value]
            return add_node(*arguments, **attributes)

        container.add_node = add
        try:
            convert(scope, operator, container)
        finally:
            container.add_node = add_node

    return converted


_ROWS = 60
_TOLERANCE = 1e-3
"""Of the largest number of an answer: the model computes in float32, the estimator in float64."""
_AGREEING = 0.95
"""The least share of rows: a sum that is rounded may lie on the other side of a threshold."""


def _check_answers(estimator: Any, model: CatalogModel) -> None:
    """Compare the model with the estimator on some rows; an estimator that takes none of them cannot be compared and passes.

    Raises:
        GnomonError: 422 `unsupported_model` where more than one row of twenty differs.

    """
    rows = _rows(estimator)
    for tried in (rows, np.abs(rows)):  # counts are not negative
        try:
            output, wanted = _answer(estimator, tried)
        except ValueError:
            continue
        if wanted.dtype.kind not in "iuf" or len(wanted) != _ROWS:
            return  # text, or several answers at once
        with torch.no_grad():
            found = model.module(torch.from_numpy(tried))[output].double().numpy().reshape(_ROWS, -1)
        wanted = wanted.astype(np.float64).reshape(_ROWS, -1)
        allowed = _TOLERANCE * max(float(np.abs(wanted).max()), _TOLERANCE)
        if found.shape != wanted.shape or (np.abs(found - wanted) <= allowed).all(axis=1).mean() < _AGREEING:
            raise _unsupported(
                f"{type(estimator).__name__} answers otherwise than its ONNX form: skl2onnx ignores a setting of it.",
                "Choose other settings, or serve it from a handler (docs/howto).",
            )
        return


def _rows(estimator: Any) -> Any:
    """Rows near those that the estimator was fitted on, as far as its own arrays tell: samples, means, support vectors."""
    drawn = np.random.default_rng(0)
    first = estimator.steps[0][1] if hasattr(estimator, "steps") else estimator
    features = estimator.n_features_in_
    arrays = [value for value in vars(first).values() if isinstance(value, np.ndarray) and value.dtype.kind in "iuf"]
    known = [array.reshape(-1, features) for array in arrays if array.ndim in (1, 2) and array.shape[-1] == features]
    near = np.concatenate([*known, np.geomspace(0.1, 10.0, _ROWS)[:, None] * drawn.normal(size=(_ROWS, features))])
    rows = near[drawn.choice(len(near), _ROWS)]
    spread = np.nanstd(rows, axis=0)
    return (rows + 0.1 * spread * drawn.normal(size=rows.shape)).astype(np.float32)


def _answer(estimator: Any, rows: Any) -> tuple[int, Any]:
    """The estimator's answer for these rows, and the number of the model's output that it is.

    Labels are compared where there are no probabilities: of two that are equal in float32 either class is right.
    """
    if hasattr(estimator, "predict_proba") and hasattr(estimator, "classes_"):
        return -1, np.asarray(estimator.predict_proba(rows))
    return 0, np.asarray(estimator.predict(rows) if hasattr(estimator, "predict") else estimator.transform(rows))


def _rename(graph: Any, value: str, name: str) -> None:
    """Give a value of the graph another name."""
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [name if known == value else known for known in names]
    for output in graph.output:
        output.name = name if output.name == value else output.name


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
