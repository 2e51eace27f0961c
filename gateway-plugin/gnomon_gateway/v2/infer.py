"""An infer request as it was asked, and its answer as V2 writes it.

A body is a JSON document, or a document of `Inference-Header-Content-Length` bytes and then the binary tensors in the order of
the inputs. Outputs are answered in the order asked for (all of them by default), each as JSON or behind the document, as
`binary_data` of the output or `binary_data_output` of the request says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import msgspec

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.signature import ModelSignature
from gnomon_gateway.v2.documents import InferDocument, read_infer
from gnomon_gateway.v2.tensors import read_tensors, to_json

_JSON_BYTES = 48
"""Of a number in JSON: up to 24 digits, a comma, and indentation."""
_AROUND_BYTES = 64 << 10
_LENGTH_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Infer:
    """What was asked: `samples` of input bytes, and which outputs how (name → binary)."""

    id: str
    samples: int
    body: bytes | memoryview
    outputs: dict[str, bool]


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """The parts of an answer's body; `header_bytes` is the document's length where binary tensors follow it."""

    parts: tuple[bytes | memoryview, ...]
    header_bytes: int | None


def read_request(signature: ModelSignature, body: memoryview, header_length: bytes | None, max_batch: int) -> Infer:
    """The request that a body holds.

    Raises:
        GnomonError: 400 with what is wrong.

    """
    length = len(body) if header_length is None else _length(header_length, len(body))
    document = read_infer(body[:length], _values(signature, max_batch))
    samples, data = read_tensors(signature, document.inputs, body[length:], max_batch)
    return Infer(document.id, samples, data, _outputs(signature, document))


def document_bytes(body_bytes: int, header_length: bytes | None) -> int:
    """How much of a body is JSON, if its header says what is right."""
    stated = header_length if header_length is not None and header_length.isdigit() else b""
    return min(int(stated), body_bytes) if 0 < len(stated) <= _LENGTH_DIGITS else body_bytes


def most_body_bytes(signature: ModelSignature, max_batch: int) -> int:
    """More than any request that the model could use: its tensors in binary or as JSON, and what is around them."""
    binary = max_batch * sum(spec.sample_bytes for spec in signature.inputs)
    return max(binary, _values(signature, max_batch) * _JSON_BYTES) + _AROUND_BYTES


def _values(signature: ModelSignature, max_batch: int) -> int:
    return max_batch * sum(math.prod(spec.shape) for spec in signature.inputs)


def write_answer(infer: Infer, signature: ModelSignature, name: str, body: memoryview) -> InferAnswer:
    """The answer that the model's output bytes make.

    Raises:
        GnomonError: 502 `invalid_result`: the bytes are not what the signature says.

    """
    sizes = [infer.samples * spec.sample_bytes for spec in signature.outputs]
    if len(body) != sum(sizes):
        raise GnomonError(502, "invalid_result", f"The model answered {len(body)} bytes instead of {sum(sizes)}.")
    offsets = {spec.name: sum(sizes[:index]) for index, spec in enumerate(signature.outputs)}
    specs = {spec.name: (spec, size) for spec, size in zip(signature.outputs, sizes, strict=True)}
    outputs: list[dict[str, Any]] = []
    binary: list[memoryview] = []
    for output, is_binary in infer.outputs.items():
        spec, size = specs[output]
        data = body[offsets[output] : offsets[output] + size]
        described: dict[str, Any] = {"name": output, "datatype": spec.datatype, "shape": [infer.samples, *spec.shape]}
        if is_binary:
            described["parameters"] = {"binary_data_size": size}
            binary.append(data)
        else:
            described["data"] = to_json(data, spec.datatype)
        outputs.append(described)
    document: dict[str, Any] = {"model_name": name, "model_version": signature.version, "outputs": outputs}
    if infer.id:
        document["id"] = infer.id
    header = msgspec.json.encode(document)
    return InferAnswer((header, *binary), len(header) if binary else None)


def _length(text: bytes, body_bytes: int) -> int:
    length = int(text) if text.isdigit() and len(text) <= _LENGTH_DIGITS else -1
    if not 0 <= length <= body_bytes:
        raise bad_request(
            "invalid_request", f"Inference-Header-Content-Length is not a number from 0 to {body_bytes}, the length of the body."
        )
    return length


def _outputs(signature: ModelSignature, document: InferDocument) -> dict[str, bool]:
    default = document.parameters.get("binary_data_output") is True
    known = [spec.name for spec in signature.outputs]
    if not document.outputs:
        return dict.fromkeys(known, default)
    wanted: dict[str, bool] = {}
    for output in document.outputs:
        if output.name not in known or output.name in wanted:
            raise bad_request(
                "invalid_request", f"Output {output.name[:100]!r} is unknown or asked for twice; known: {', '.join(known)}."
            )
        wanted[output.name] = output.parameters.get("binary_data", default) is True
    return wanted
