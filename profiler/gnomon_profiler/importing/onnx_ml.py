"""Operators of the domain ai.onnx.ml as torch operations: what scikit-learn's estimators are exported to.

**Trees.** All nodes of all trees are in one table: feature, threshold, and the numbers of both children, a leaf being its own
child. Every sample has one place in each tree; `depth` times each place moves to a child. The weights of the leaves are summed.

    place (batch × trees) ─▶ feature[place] ─▶ x of it ≤ threshold[place] ─▶ place = left or right     repeated `depth` times

**Support vector machines.** A regressor adds up the kernel of a sample with each support vector, weighted. A classifier does so
for each pair of classes; the sign of a sum is a vote for one of both, and the class with the most votes is the label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gnomon_profiler.importing.onnx_values import Call, Results, Unsupported, constant

MAX_DEPTH = 512
MAX_TREE_NODES = 4 << 20
_COMPARISONS = {"BRANCH_LEQ": torch.le, "BRANCH_LT": torch.lt, "BRANCH_GTE": torch.ge, "BRANCH_GT": torch.gt}
_LEAF = "LEAF"


@dataclass(frozen=True, slots=True)
class _Trees:
    """The nodes of an ensemble, by number. `roots` has one number for each tree."""

    features: Tensor
    thresholds: Tensor
    left: Tensor
    right: Tensor
    missing_left: Tensor | None
    roots: Tensor
    depth: int
    comparison: Any
    weights: Tensor
    """nodes × results."""


def tree_regressor(call: Call) -> Tensor:
    """`TreeEnsembleRegressor(X)`."""
    if call.attribute("aggregate_function", "SUM") != "SUM":
        raise Unsupported("it does not add up what its trees give")
    trees = _trees(call, "target", int(call.attribute("n_targets", 1)))
    return _post(call, _base(call, _sum(trees, call.tensor(0))))


def tree_classifier(call: Call) -> Results:
    """`TreeEnsembleClassifier(X)`: labels, scores."""
    labels = _labels(call)
    class_ids = sorted(set(call.attribute("class_ids", [])))
    binary = len(labels) == 2 and len(class_ids) == 1  # noqa: PLR2004 - one score for two classes
    trees = _trees(call, "class", 1 if binary else len(labels), dict.fromkeys(class_ids, 0) if binary else None)
    scores = _base(call, _sum(trees, call.tensor(0)))
    if not binary:
        return _labelled(call, labels, scores)
    return _labelled_binary(call, labels, scores)


def linear_regressor(call: Call) -> Tensor:
    """`LinearRegressor(X)`."""
    return _post(call, _scores(call, int(call.attribute("targets", 1))))


def linear_classifier(call: Call) -> Results:
    """`LinearClassifier(X)`: labels, scores."""
    labels = _labels(call)
    features = int(call.tensor(0).shape[-1])
    rows = len(call.attribute("coefficients", [])) // max(features, 1)
    scores = _scores(call, rows)
    if rows == 1 and len(labels) == 2:  # noqa: PLR2004 - one score for two classes
        return _labelled_binary(call, labels, scores)
    return _labelled(call, labels, scores)


def svm_regressor(call: Call) -> Tensor:
    """`SVMRegressor(X)`; of a machine for one class the side of the boundary, 1 or -1."""
    tensor = _floats(call)
    weight = _vector(call, "coefficients", tensor).reshape(1, -1)
    score = functional.linear(_kernel(call, tensor), weight, _vector(call, "rho", tensor))
    if call.attribute("one_class", 0):
        return torch.where(score > 0, torch.ones_like(score), -torch.ones_like(score))
    return _post(call, score)


def svm_classifier(call: Call) -> Results:
    """`SVMClassifier(X)`: labels, and the sum of each pair of classes; of two classes both the sum and its negative."""
    if call.attribute("prob_a"):
        raise Unsupported("its probabilities are iterated (probability=True); wrap it into CalibratedClassifierCV instead")
    tensor, labels = _floats(call), _labels(call)
    pairs = [(first, second) for first in range(len(labels)) for second in range(first + 1, len(labels))]
    scores = functional.linear(_kernel(call, tensor), _pair_weights(call, pairs), _vector(call, "rho", tensor))
    sides = torch.zeros(2, len(pairs), len(labels))
    for number, (first, second) in enumerate(pairs):
        sides[0, number, first] = sides[1, number, second] = 1.0
    for_first = (scores > 0).to(torch.float32)
    votes = for_first @ sides[0] + (1 - for_first) @ sides[1]
    named = constant(labels, torch.int64)[torch.argmax(votes, -1)]
    return named, torch.cat([-scores, scores], -1) if len(pairs) == 1 else scores


def _pair_weights(call: Call, pairs: Sequence[tuple[int, int]]) -> Tensor:
    """The weight of each support vector in the sum of each pair of classes: pairs × vectors."""
    counts = [int(count) for count in call.attribute("vectors_per_class", [])]
    ends = list(accumulate(counts))
    # Row r of a class's vectors has the weights against the r-th of the other classes.
    rows = np.asarray(call.attribute("coefficients"), np.float32).reshape(-1, sum(counts))
    weights = np.zeros((len(pairs), sum(counts)), np.float32)
    for number, (first, second) in enumerate(pairs):
        for own, row in ((first, second - 1), (second, first)):
            vectors = slice(ends[own] - counts[own], ends[own])
            weights[number, vectors] = rows[row, vectors]
    return torch.from_numpy(weights)


def _kernel(call: Call, tensor: Tensor) -> Tensor:
    """The kernel of each sample with each support vector: batch × vectors; the samples themselves where there are no vectors."""
    if not call.attribute("support_vectors"):
        return tensor
    vectors = np.asarray(call.attribute("support_vectors"), np.float32).reshape(-1, int(tensor.shape[-1]))
    gamma, offset, degree = call.attribute("kernel_params") or (0.0, 0.0, 0.0)
    kind = call.attribute("kernel_type", "LINEAR")
    if kind == "RBF":
        # Distances do not change with the origin; from the vectors' mean the numbers are small, and so is the rounding error.
        centre = vectors.mean(0)
        vectors, tensor = vectors - centre, tensor - torch.from_numpy(centre)
    products = functional.linear(tensor, torch.from_numpy(vectors))
    match kind:
        case "LINEAR":
            return products
        case "POLY":
            return (gamma * products + offset).pow(degree)
        case "SIGMOID":
            return torch.tanh(gamma * products + offset)
        case "RBF":
            lengths = tensor.square().sum(-1, keepdim=True) + torch.from_numpy(np.square(vectors).sum(-1))
            return torch.exp(-gamma * (lengths - 2 * products).clamp(min=0))
    raise Unsupported(f"the kernel {kind!r} is not supported")


def distances(call: Call) -> Tensor:
    """`CDist(A, B)` of the domain com.microsoft: the distance of each row of A to each row of B."""
    difference = call.tensor(0).unsqueeze(1) - call.tensor(1).unsqueeze(0)
    match call.attribute("metric", "sqeuclidean"):
        case "euclidean":
            return difference.square().sum(-1).sqrt()
        case "sqeuclidean":
            return difference.square().sum(-1)
        case "cityblock" | "manhattan":
            return difference.abs().sum(-1)
    raise Unsupported(f"the metric {call.attribute('metric')!r} is not supported")


def scaler(call: Call) -> Tensor:
    """`Scaler(X)`."""
    tensor = _floats(call)
    return (tensor - _vector(call, "offset", tensor)) * _vector(call, "scale", tensor)


def normalizer(call: Call) -> Tensor:
    """`Normalizer(X)`: rows of length 1 by a norm; rows of zeros stay."""
    tensor = _floats(call)
    size = {
        "MAX": lambda: tensor.abs().amax(-1, keepdim=True),
        "L1": lambda: tensor.abs().sum(-1, keepdim=True),
        "L2": lambda: tensor.square().sum(-1, keepdim=True).sqrt(),
    }[call.attribute("norm", "MAX")]()
    return tensor / torch.where(size == 0, torch.ones_like(size), size)


def imputer(call: Call) -> Tensor:
    """`Imputer(X)` of numbers that are missing as NaN."""
    tensor = _floats(call)
    replaced = call.attribute("replaced_value_float", 0.0)
    missing = torch.isnan(tensor) if replaced != replaced else tensor == replaced  # noqa: PLR0124 - NaN
    return torch.where(missing, _vector(call, "imputed_value_floats", tensor), tensor)


def binarizer(call: Call) -> Tensor:
    """`Binarizer(X)`."""
    tensor = call.tensor(0)
    return torch.gt(tensor, call.attribute("threshold", 0.0)).to(tensor.dtype)


def extractor(call: Call) -> Tensor:
    """`ArrayFeatureExtractor(X, Y)`: columns."""
    tensor, columns = call.tensor(0), call.tensor(1).reshape(-1)
    if tensor.dim() == 1:
        tensor = tensor.unsqueeze(0)
    return tensor.index_select(-1, columns)


def label_encoder(call: Call) -> Tensor:
    """`LabelEncoder(X)` from numbers to numbers."""
    pairs = [
        (keys, values)
        for keys in ("keys_int64s", "keys_floats")
        for values in ("values_int64s", "values_floats")
        if {keys, values} <= set(call.step.attributes)
    ]
    if not pairs:
        raise Unsupported("its labels are text")
    keys, values = pairs[0]
    tensor = call.tensor(0)
    default = call.attribute("default_int64" if values == "values_int64s" else "default_float", -1)
    result = torch.full_like(tensor, default, dtype=torch.int64 if values == "values_int64s" else torch.float32)
    for key, value in zip(call.attribute(keys), call.attribute(values), strict=True):
        result = torch.where(tensor == key, torch.full_like(result, value), result)
    return result


def one_hot_encoder(call: Call) -> Tensor:
    """`OneHotEncoder(X)` of integers."""
    categories = call.attribute("cats_int64s")
    if not categories:
        raise Unsupported("its categories are text")
    tensor = call.tensor(0)
    return (tensor.unsqueeze(-1) == constant(categories, tensor.dtype)).to(torch.float32)


def _floats(call: Call) -> Tensor:
    tensor = call.tensor(0)
    return tensor if tensor.is_floating_point() else tensor.to(torch.float32)


def _vector(call: Call, name: str, like: Tensor) -> Tensor:
    return constant(call.attribute(name), like.dtype)


def _scores(call: Call, rows: int) -> Tensor:
    tensor = _floats(call)
    weight = _vector(call, "coefficients", tensor).reshape(rows, -1)
    bias = _vector(call, "intercepts", tensor) if call.attribute("intercepts") else None
    return functional.linear(tensor, weight, bias)


def _base(call: Call, scores: Tensor) -> Tensor:
    return scores + _vector(call, "base_values", scores) if call.attribute("base_values") else scores


def _post(call: Call, scores: Tensor) -> Tensor:
    match call.attribute("post_transform", "NONE"):
        case "NONE":
            return scores
        case "LOGISTIC":
            return torch.sigmoid(scores)
        case "SOFTMAX":
            return torch.softmax(scores, -1)
    raise Unsupported(f"the transformation {call.attribute('post_transform')!r} is not supported")


def _labels(call: Call) -> list[int]:
    """Classes as numbers; of classes that are text, their places."""
    numbers = call.attribute("classlabels_ints") or call.attribute("classlabels_int64s")
    if numbers:
        return [int(number) for number in numbers]
    return list(range(len(call.attribute("classlabels_strings") or [])))


def _labelled(call: Call, labels: list[int], scores: Tensor) -> Results:
    places = torch.argmax(scores, -1)
    named = places if labels == list(range(len(labels))) else constant(labels, torch.int64)[places]
    return named, _post(call, scores)


def _labelled_binary(call: Call, labels: list[int], score: Tensor) -> Results:
    """Convert the single score of a binary classifier: the second class's probability, or a margin whose sign decides."""
    post = call.attribute("post_transform", "NONE")
    if post not in ("NONE", "LOGISTIC"):
        raise Unsupported(f"the transformation {post!r} of one score for two classes is not supported")
    second = torch.sigmoid(score) if post == "LOGISTIC" else score
    chosen = (second > 0.5).to(torch.int64).squeeze(-1)  # noqa: PLR2004 - even odds
    named = constant(labels, torch.int64)[chosen]
    return named, torch.cat([1 - second, second], -1)


def _sum(trees: _Trees, tensor: Tensor) -> Tensor:
    tensor = tensor if tensor.is_floating_point() else tensor.to(torch.float32)
    node = trees.roots.unsqueeze(0).expand(tensor.shape[0], -1)
    for _ in range(trees.depth):
        feature_values = torch.gather(tensor, 1, trees.features[node])
        goes_left = trees.comparison(feature_values, trees.thresholds[node])
        if trees.missing_left is not None:
            goes_left = goes_left | (torch.isnan(feature_values) & trees.missing_left[node])
        node = torch.where(goes_left, trees.left[node], trees.right[node])
    return trees.weights[node].sum(1)


def _trees(call: Call, kind: str, results: int, columns: Mapping[int, int] | None = None) -> _Trees:
    keys = list(zip(call.attribute("nodes_treeids", []), call.attribute("nodes_nodeids", []), strict=True))
    modes = call.attribute("nodes_modes", [])
    comparisons = sorted(set(modes) - {_LEAF})
    if not keys or len(keys) > MAX_TREE_NODES or len(comparisons) > 1 or not set(comparisons) <= set(_COMPARISONS):
        raise Unsupported(f"it has {len(keys)} nodes of the kinds {', '.join(comparisons)}")
    number = {key: index for index, key in enumerate(keys)}
    left, right = (
        [
            index if mode == _LEAF else number[tree, child]
            for index, (mode, (tree, _), child) in enumerate(zip(modes, keys, call.attribute(name), strict=True))
        ]
        for name in ("nodes_truenodeids", "nodes_falsenodeids")
    )
    below = {child for index in range(len(keys)) for child in (left[index], right[index]) if child != index}
    roots = [index for index in range(len(keys)) if index not in below]
    weights = np.zeros((len(keys), results), np.float32)
    for tree, node, column, weight in zip(
        *(call.attribute(f"{kind}_{name}", []) for name in ("treeids", "nodeids", "ids", "weights")), strict=True
    ):
        weights[number[tree, node], columns[column] if columns else column] += weight
    missing = call.attribute("nodes_missing_value_tracks_true") or []
    return _Trees(
        constant(call.attribute("nodes_featureids"), torch.int64),
        constant(call.attribute("nodes_values"), torch.float32),
        constant(left, torch.int64),
        constant(right, torch.int64),
        constant(missing, torch.bool) if any(missing) else None,
        constant(roots, torch.int64),
        _depth(left, right, roots),
        _COMPARISONS[comparisons[0]] if comparisons else torch.le,
        torch.from_numpy(weights),
    )


def _depth(left: list[int], right: list[int], roots: list[int]) -> int:
    """The longest way to a leaf; refused where the nodes are no trees."""
    level, depth = list(roots), 0
    while level := [child for node in level for child in {left[node], right[node]} if child != node]:
        depth += 1
        if depth > MAX_DEPTH or len(level) > len(left):
            raise Unsupported(f"its trees are deeper than {MAX_DEPTH} or have cycles")
    return depth


ML_OPERATORS: Mapping[str, Any] = {
    "ArrayFeatureExtractor": extractor,
    "Binarizer": binarizer,
    "Imputer": imputer,
    "LabelEncoder": label_encoder,
    "LinearClassifier": linear_classifier,
    "LinearRegressor": linear_regressor,
    "Normalizer": normalizer,
    "OneHotEncoder": one_hot_encoder,
    "SVMClassifier": svm_classifier,
    "SVMRegressor": svm_regressor,
    "Scaler": scaler,
    "TreeEnsembleClassifier": tree_classifier,
    "TreeEnsembleRegressor": tree_regressor,
    "ZipMap": lambda call: call.tensor(0),
}
"""Probabilities stay a tensor where `ZipMap` would make dictionaries of them."""
MICROSOFT_OPERATORS: Mapping[str, Any] = {"CDist": distances}
"""Operators of the domain com.microsoft: skl2onnx writes distances so; as operators of the default domain they are a loop."""
