"""Inputs and outputs of a model: the shapes and types that requests are checked against before they are admitted.

Names and datatypes are those of the open inference protocol (V2). Shapes are per sample: the batch axis, always the first one on
the wire, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DATATYPE_BYTES: Mapping[str, int] = {
    "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8,
    "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8,
}  # fmt: skip
NUMPY_TYPES: Mapping[str, str] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2", "INT32": "<i4",
    "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
"""numpy's names of the datatypes, as their bytes are on the wire; numpy has none for BF16."""

_SCORES = frozenset({"FP16", "FP32", "FP64"})


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor: its name, V2 datatype and shape per sample."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return math.prod(self.shape) * DATATYPE_BYTES[self.datatype]

    @property
    def numpy_type(self) -> str:
        """The type of numpy that holds the tensor's numbers, by numpy's name: FP32's for BF16, which numpy lacks."""
        return NUMPY_TYPES.get(self.datatype, NUMPY_TYPES["FP32"])

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> TensorSpec:
        return TensorSpec(str(document["name"]), str(document["datatype"]), tuple(int(n) for n in document["shape"]))


@dataclass(frozen=True, slots=True)
class Padding:
    """The padding of shorter sequences for a model that takes sequences of `length` only.

    `inputs` are filled up with these numbers behind the sequence; `outputs`, which have a row for each token, lose the rows of
    the filling. The model answers the tokens in front as it would answer them alone: its attention mask is among the inputs.
    """

    length: int
    inputs: Mapping[str, int]
    outputs: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"length": self.length, "inputs": dict(self.inputs), "outputs": list(self.outputs)}


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """A model's inputs and outputs.

    `kind` is what the application does around the network: "image-classification" adds decoding before and labels behind, ""
    nothing.
    """

    model: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kind: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    def takes_requests_of(self, other: ModelSignature | None) -> bool:
        """Return whether a request that was checked against the other signature is valid for this one, and so is its answer.

        Other details, such as labels, are applied by the instance that executes the request.
        """
        if other is None:
            return False
        return (self.inputs, self.outputs, self.kind, self.padding) == (other.inputs, other.outputs, other.kind, other.padding)

    @property
    def scores(self) -> int | None:
        """The number of the output with a score for each class; None if there is none.

        It is the first output, or the second one behind a label, as classifiers of scikit-learn have them.
        """
        for number, spec in enumerate(self.outputs[:2]):
            if len(spec.shape) == 1 and spec.datatype in _SCORES:
                return number
            if spec.shape or spec.datatype in _SCORES:
                return None
        return None

    @property
    def padding(self) -> Padding | None:
        """The padding of shorter sequences; None for a model that takes tensors of its own shapes only."""
        document = self.details.get("padding")
        if document is None:
            return None
        inputs = {str(name): int(number) for name, number in document["inputs"].items()}
        return Padding(int(document["length"]), inputs, tuple(map(str, document["outputs"])))

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "version": self.version,
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
            "kind": self.kind,
            "details": dict(self.details),
        }

    @staticmethod
    def from_json(document: Mapping[str, Any]) -> ModelSignature:
        return ModelSignature(
            model=str(document["model"]),
            version=str(document["version"]),
            inputs=tuple(TensorSpec.from_json(spec) for spec in document["inputs"]),
            outputs=tuple(TensorSpec.from_json(spec) for spec in document["outputs"]),
            kind=str(document.get("kind", "")),
            details=dict(document.get("details", {})),
        )
