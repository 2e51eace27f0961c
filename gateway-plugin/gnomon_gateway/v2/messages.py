"""Infer requests and responses of V2: parsing, rendering and errors.

Errors are `{"error": "…"}` with the same status codes and headers as elsewhere.

**Format.** A body is a JSON document, or a document of `Inference-Header-Content-Length` bytes and then the binary tensors in the
order of the inputs. Outputs are returned in the requested order (all of them by default), each as JSON or after the document, as
`binary_data` of the output or `binary_data_output` of the request says.

**Cost.** Parsing blocks the event loop, so its cost is bounded by the largest input of the model: 60 MB of zeros took 3 s to
parse and refuse. A document is scanned before it is decoded: for the number of commas (one for each value), and for exponents at
the edge of a float's range, which msgspec parses two hundred times slower than others.

**Validation.** Tensors are converted to the raw little-endian bytes that a batch carries. All are checked against the model's
signature before admission: names, datatypes, shapes, byte counts and, in JSON, the kind and range of each number. NaN and
infinities are valid in a float tensor.

**Padding.** Sequences shorter than the model's are padded before the batch, and the padding is cut off in the answer.

    [2, 5] of a model of length 8 ─▶ [2, 8], tokens and attention mask filled up ─▶ model ─▶ [2, 8, 4] ─▶ [2, 5, 4]

So requests of all lengths up to the model's share batches. A batch costs what the model's length costs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.signature import NUMPY_TYPES, ModelSignature, Padding, TensorSpec
from gnomon_core.wire import Member
from gnomon_gateway.http.headers import error_lines, refusal_lines

_NOT_JSON_NUMBERS = (b"NaN", b"Infinity")
_FAR_EXPONENT = re.compile(rb"[eE][-+]?0*[2-9]\d\d")
"""An exponent of three digits from 200 on: a double's range ends at 1e308 and 5e-324."""
_FEW_EXPONENTS = 64
"""A document with at most this many exponents is decoded by msgspec in any case: so few slow numbers cost little."""
_SURROGATE_PAIR = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_OTHER_COMMAS = 4096
"""The most commas outside of data: in names, shapes and parameters."""


_Dimension: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""Bounded, because a product of dimensions is part of messages, and Python writes no number of more than 4300 digits."""
_Scalar: TypeAlias = str | int | float | bool | None
_Parameters: TypeAlias = dict[str, _Scalar | list[_Scalar] | dict[str, _Scalar]]
"""The protocol has scalars only. MLServer's clients send one level more; what is nested deeper could not be written again."""


class InputDocument(msgspec.Struct):
    """A tensor in a request: `data` holds its numbers, or `binary_data_size` bytes follow the document."""

    name: str
    shape: list[_Dimension]
    datatype: str
    parameters: _Parameters = {}
    data: Any = None


class OutputDocument(msgspec.Struct):
    """An output that the client wants."""

    name: str
    parameters: _Parameters = {}


class InferDocument(msgspec.Struct):
    """The JSON document of an infer request: the whole body, or its part before the binary tensors."""

    inputs: list[InputDocument]
    id: str = ""
    parameters: _Parameters = {}
    outputs: list[OutputDocument] | None = None


_DECODER = msgspec.json.Decoder(InferDocument)


def read_infer(text: bytes | memoryview, most_values: int) -> InferDocument:
    """Decode a document with at most `most_values` numbers.

    JSON has no NaN, but Python's json writes it and other servers accept it: such a document is decoded by Python's json.

    Raises:
        GnomonError: 400 `invalid_request`, with the place of the error; 400 `batch_too_large` for too many numbers.

    """
    data = text if isinstance(text, bytes) else bytes(text)  # a memoryview cannot be searched
    if data.count(b",") > most_values + _OTHER_COMMAS:
        raise bad_request(
            "batch_too_large",
            f"The request holds more than the {most_values} numbers that one request may have.",
            "Send fewer samples in each request.",
        )
    try:
        if data.count(b"e") + data.count(b"E") > _FEW_EXPONENTS and _FAR_EXPONENT.search(data):
            return _read_in_python(data)
        return _DECODER.decode(data)
    except (msgspec.ValidationError, RecursionError) as error:
        raise bad_request("invalid_request", f"The inference request is invalid: {str(error)[:500]}.") from None
    except ValueError as error:
        reason = error
        if any(word in data for word in _NOT_JSON_NUMBERS):
            try:
                return _read_in_python(data)
            except ValueError as unread:
                reason = unread
            except RecursionError:
                pass
        raise bad_request("invalid_request", f"The inference request is not JSON: {str(reason)[:500]}.") from None


def _read_in_python(data: bytes) -> InferDocument:
    """Parse by Python's json. Lone surrogates are refused, because no answer could be encoded with one."""
    document = msgspec.convert(json.loads(data.decode()), InferDocument)
    if _SURROGATE.search(_SURROGATE_PAIR.sub(b"", data.replace(rb"\\", b""))):
        raise ValueError("a text holds a lone surrogate")
    return document


_BFLOAT = "BF16"
_MANY = 16
"""The most items of a client's list that an error repeats."""


def read_tensors(
    signature: ModelSignature, inputs: Sequence[InputDocument], binary: memoryview, max_batch: int
) -> tuple[int, bytes | memoryview]:
    """Check the inputs; returns the number of samples, and the tensors' bytes one after the other in the signature's order.

    `binary` holds the binary tensors in the order of the request, which may be another one.

    Raises:
        GnomonError: 400 `invalid_tensor` or `batch_too_large`.

    """
    names = [tensor.name for tensor in inputs]
    expected_names = [spec.name for spec in signature.inputs]
    if sorted(names) != sorted(expected_names):
        raise _invalid(f"The inputs are {_list(names)}; the model takes {_list(expected_names)}.")
    specs = {spec.name: spec for spec in signature.inputs}
    offset = 0
    parts: dict[str, bytes | memoryview] = {}
    samples = 0
    for tensor in inputs:
        spec = specs[tensor.name]
        samples = _check_shape(tensor, spec, samples)
        size = tensor.parameters.get("binary_data_size")
        if size is None:
            parts[tensor.name] = _from_json(tensor, spec)
            continue
        if tensor.data is not None:
            raise _invalid(f"{tensor.name} has both data and binary_data_size.")
        if type(size) is not int or size != samples * spec.sample_bytes:
            raise _invalid(
                f"{tensor.name} has binary_data_size {str(size)[:_MANY]}; its shape takes {samples * spec.sample_bytes} bytes."
            )
        parts[tensor.name] = binary[offset : offset + size]
        offset += size
    if offset != len(binary):
        raise _invalid(f"{len(binary)} bytes of binary data came, the inputs state {offset}.")
    if samples > max_batch:
        raise bad_request(
            "batch_too_large",
            f"The request has {samples} samples; one request may have at most {max_batch}.",
            "Send several requests, or raise gnomon/max-batch.",
        )
    ordered = [parts[name] for name in expected_names]
    return samples, ordered[0] if len(ordered) == 1 else b"".join(ordered)


def _check_shape(tensor: InputDocument, spec: TensorSpec, samples: int) -> int:
    """The tensor's number of samples, which must be `samples` unless that is 0 because this is the first tensor."""
    if tensor.datatype != spec.datatype:
        raise _invalid(f"{tensor.name} is {tensor.datatype[:100]!r}; the model takes {spec.datatype}.")
    if len(tensor.shape) != len(spec.shape) + 1 or tuple(tensor.shape[1:]) != spec.shape or tensor.shape[0] < 1:
        raise _invalid(f"{tensor.name} has shape {tensor.shape[:_MANY]}; the model takes [samples, {_list(spec.shape)}].")
    if samples and tensor.shape[0] != samples:
        raise _invalid(f"{tensor.name} has {tensor.shape[0]} samples, another input {samples}.")
    return tensor.shape[0]


def _from_json(tensor: InputDocument, spec: TensorSpec) -> bytes:
    """The bytes of a tensor's data, which is nested by its shape or flat."""
    if not isinstance(tensor.data, list):
        raise _invalid(f"{tensor.name} has no data.")
    if _holds_text(tensor.data):
        raise _invalid(f"The data of {tensor.name} is not all numbers: it holds texts.")
    try:
        values = np.array(tensor.data)
        if spec.datatype == "UINT64" and values.dtype.kind == "f":
            # numpy turns a mixture of numbers with and without the 64th bit into floats, which round above 2^53.
            values = _exact_integers(tensor.data)
    except (ValueError, OverflowError):
        raise _invalid(f"The data of {tensor.name} is ragged or holds more than numbers.") from None
    expected = math.prod(tensor.shape)
    if values.size != expected or values.shape not in ((expected,), tuple(tensor.shape)):
        raise _invalid(f"The data of {tensor.name} has {values.size} numbers, its shape {tensor.shape} takes {expected}.")
    return _cast(values, tensor.name, spec.datatype)


def _holds_text(data: list[Any]) -> bool:
    """Return whether the data hold a text at any depth.

    numpy would make every cell as long as the longest text: one text of 30,000 letters before 10,000 numbers took 1.2 GB.
    """
    cells, kinds = data, set(map(type, data))
    # One level of nesting a turn. Recursion would be limited in depth, and slower than `chain` over millions of numbers.
    while list in kinds and str not in kinds:
        cells = list(chain.from_iterable(cells if len(kinds) == 1 else [row for row in cells if type(row) is list]))
        kinds = set(map(type, cells))
    return str in kinds


def _exact_integers(data: list[Any]) -> np.ndarray[Any, Any]:
    """The data as UINT64 if they are integers from 0 on, else as numpy would convert them. Raises OverflowError from 2^64 on."""
    values = np.array(data, dtype=object)
    integers = all(type(value) is int for value in values.flat)
    return values.astype("u8") if integers and min(values.flat) >= 0 else np.array(data)


def _cast(values: np.ndarray[Any, Any], name: str, datatype: str) -> bytes:
    kind = values.dtype.kind
    if datatype == "BOOL":
        if kind != "b":
            raise _invalid(f"The data of {name} is not all true or false.")
        return values.tobytes()
    if datatype in ("FP16", "FP32", "FP64", _BFLOAT):
        if kind not in "iuf":
            raise _invalid(f"The data of {name} is not all numbers.")
        with np.errstate(over="ignore"):  # a number beyond the type's range becomes an infinity, as in other servers
            return _bfloat(values) if datatype == _BFLOAT else values.astype(NUMPY_TYPES[datatype]).tobytes()
    dtype = np.dtype(NUMPY_TYPES[datatype])
    if kind not in "iu":
        raise _invalid(f"The data of {name} is not all whole numbers.")
    bounds = np.iinfo(dtype)
    if values.size and (int(values.min()) < bounds.min or int(values.max()) > bounds.max):
        raise _invalid(f"The data of {name} does not fit {datatype}.")
    return values.astype(dtype).tobytes()


def _bfloat(values: np.ndarray[Any, Any]) -> bytes:
    """The upper half of each FP32, rounded to nearest even; NaN stays NaN."""
    # Adding half of the last kept bit, and that bit itself on a tie, carries into the upper half where it rounds up.
    bits = values.astype("<f4").view("<u4")
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    rounded[np.isnan(values.astype("<f4"))] = 0x7FC0
    data: bytes = rounded.tobytes()
    return data


def to_json(data: memoryview, datatype: str) -> list[Any]:
    """The numbers of a tensor, flat."""
    if datatype == _BFLOAT:
        widened: list[Any] = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").tolist()
        return widened
    numbers: list[Any] = np.frombuffer(data, NUMPY_TYPES[datatype]).tolist()
    return numbers


def _list(items: Sequence[object]) -> str:
    more = ", …" if len(items) > _MANY else ""
    return ", ".join(str(item)[:100] for item in items[:_MANY]) + more or "none"


def _invalid(message: str) -> GnomonError:
    return bad_request("invalid_tensor", message)


_JSON_BYTES = 48
"""The size of a number in JSON: up to 24 digits, a comma, and indentation."""
_AROUND_BYTES = 64 << 10
"""Room for names, shapes and parameters."""
_LENGTH_DIGITS = 18
"""The most digits of a length that is converted: `int` of five thousand digits raises ValueError."""
_NOT_OFFERED = ("classification", "shared_memory_region")
"""Extensions by which other servers give an output in another form: a client that asks for one would misread the tensor."""


@dataclass(frozen=True, slots=True)
class Infer:
    """A parsed infer request.

    `body` holds the tensors of `samples` samples, `outputs` says for each requested output whether it is returned as binary.
    `length` is the length of the request's sequences if the model pads them, else 0; `body` is padded to the model's length.
    """

    id: str
    samples: int
    body: bytes | memoryview
    outputs: dict[str, bool]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    length: int = 0


@dataclass(frozen=True, slots=True)
class InferAnswer:
    """The parts of an answer's body; `header_bytes` is the document's length where binary tensors follow it."""

    parts: tuple[bytes | memoryview, ...]
    header_bytes: int | None


def read_request(signature: ModelSignature, body: memoryview, header_length: bytes | None, max_batch: int) -> Infer:
    """Parse and validate a body. `header_length` is the value of `Inference-Header-Content-Length`, None if there is none.

    Raises:
        GnomonError: 400 with the reason.

    """
    document_end = len(body) if header_length is None else _length(header_length, len(body))
    document = read_infer(body[:document_end], _values(signature, max_batch))
    binary, padding = body[document_end:], signature.padding
    if padding is None:
        samples, data = read_tensors(signature, document.inputs, binary, max_batch)
        return Infer(document.id, samples, data, _outputs(signature, document), document.parameters)
    tokens = _sequence_length(padding, [(tensor.name, tensor.shape) for tensor in document.inputs])
    samples, data = read_tensors(_at_length(signature, padding, tokens), document.inputs, binary, max_batch)
    if tokens < padding.length:
        data = _pad(signature, padding, data, samples, tokens)
    return Infer(document.id, samples, data, _outputs(signature, document), document.parameters, tokens)


def document_bytes(body_bytes: int, header_length: bytes | None) -> int:
    """The length of a body's JSON part: as its header states, or the whole body if the header is absent or invalid."""
    stated = header_length if header_length is not None and header_length.isdigit() else b""
    return min(int(stated), body_bytes) if 0 < len(stated) <= _LENGTH_DIGITS else body_bytes


def most_body_bytes(signature: ModelSignature, max_batch: int) -> int:
    """An upper bound of the bytes of the model's largest request: its tensors in binary or as JSON, and the other fields."""
    binary = max_batch * sum(spec.sample_bytes for spec in signature.inputs)
    return max(binary, _values(signature, max_batch) * _JSON_BYTES) + _AROUND_BYTES


def _values(signature: ModelSignature, max_batch: int) -> int:
    """The numbers in the inputs of `max_batch` samples."""
    return max_batch * sum(math.prod(spec.shape) for spec in signature.inputs)


def write_answer(infer: Infer, signature: ModelSignature, name: str, body: memoryview) -> InferAnswer:
    """Render the answer from the model's output bytes: the tensors one after the other in the signature's order.

    Raises:
        GnomonError: 502 `invalid_result`: the bytes are not what the signature says.

    """
    sizes = [infer.samples * spec.sample_bytes for spec in signature.outputs]
    if len(body) != sum(sizes):
        raise GnomonError(502, "invalid_result", f"The model answered {len(body)} bytes instead of {sum(sizes)}.")
    offsets = {spec.name: sum(sizes[:index]) for index, spec in enumerate(signature.outputs)}
    specs = {spec.name: (spec, size) for spec, size in zip(signature.outputs, sizes, strict=True)}
    padding = signature.padding if infer.length else None
    by_token = padding.outputs if padding is not None and infer.length < padding.length else ()
    outputs: list[dict[str, Any]] = []
    binary: list[memoryview] = []
    for output, is_binary in infer.outputs.items():
        spec, size = specs[output]
        data = body[offsets[output] : offsets[output] + size]
        if output in by_token:
            spec, data = _cut(spec, data, infer.samples, infer.length)
            size = len(data)
        entry: dict[str, Any] = {"name": output, "datatype": spec.datatype, "shape": [infer.samples, *spec.shape]}
        if is_binary:
            entry["parameters"] = {"binary_data_size": size}
            binary.append(data)
        else:
            entry["data"] = to_json(data, spec.datatype)
        outputs.append(entry)
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
    output_names = [spec.name for spec in signature.outputs]
    if not document.outputs:
        return dict.fromkeys(output_names, default)
    requested: dict[str, bool] = {}
    for output in document.outputs:
        if output.name not in output_names or output.name in requested:
            raise bad_request(
                "invalid_request",
                f"Output {output.name[:100]!r} is unknown or asked for twice; known: {', '.join(output_names)}.",
            )
        for extension in _NOT_OFFERED:
            if output.parameters.get(extension):
                raise bad_request("invalid_request", f"Output {output.name} has the parameter {extension}, which is not offered.")
        requested[output.name] = output.parameters.get("binary_data", default) is True
    return requested


_OK = 200
_JSON = b"content-type: application/json\r\n"


def answer(infer: Infer, signature: ModelSignature, name: str, member: Member) -> tuple[int, bytes, bytes | memoryview]:
    """Status, header lines and body of the answer of a model's function by this name."""
    if member.code != _OK:
        return member.code, _JSON + refusal_lines(member), error_body(_error_text(bytes(member.body)))
    try:
        written = write_answer(infer, signature, name, memoryview(member.body))
    except GnomonError as error:
        return refusal(error)
    lines = _JSON
    if written.header_bytes is not None:
        lines = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n" % written.header_bytes
    return _OK, lines, written.parts[0] if len(written.parts) == 1 else b"".join(written.parts)


def refusal(error: GnomonError) -> tuple[int, bytes, bytes]:
    """Status, header lines and body of an error of the gateway."""
    return error.status, error_lines(error), error_body(str(error))


def error_body(text: str) -> bytes:
    """V2's error document. A lone surrogate, which a function's own error may hold, becomes a question mark."""
    return json.dumps({"error": text}, ensure_ascii=False).encode(errors="replace")


def _error_text(body: bytes) -> str:
    """The text of an instance's error: message and hint of a Gnomon error document, or the text as it is."""
    try:
        error = json.loads(body)["error"]
        return f"{error['message']} {error.get('hint', '')}".strip() if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        return body.decode("utf-8", "replace")


def _sequence_length(padding: Padding, shapes: Sequence[tuple[str, Sequence[int]]]) -> int:
    """The length of a request's sequences. `shapes` are the names and shapes of its inputs; axis 0 counts samples, axis 1 tokens.

    Raises:
        GnomonError: 400 `invalid_tensor`: the lengths differ, or the model does not take this length.

    """
    lengths = [shape[1] for name, shape in shapes if name in padding.inputs and len(shape) > 1]
    if not lengths:
        return padding.length  # the comparison with the signature says which axes are missing
    if any(length != lengths[0] for length in lengths) or not 0 < lengths[0] <= padding.length:
        found = ", ".join(map(str, lengths[:_MANY]))
        raise bad_request(
            "invalid_tensor",
            f"The inputs have sequences of the lengths {found}.",
            f"The model takes 1 to {padding.length} tokens, as many in each input.",
        )
    return lengths[0]


def _at_length(signature: ModelSignature, padding: Padding, length: int) -> ModelSignature:
    """The signature of requests with sequences of this length."""
    inputs = tuple(
        replace(spec, shape=(length, *spec.shape[1:])) if spec.name in padding.inputs else spec for spec in signature.inputs
    )
    return replace(signature, inputs=inputs)


def _pad(signature: ModelSignature, padding: Padding, body: bytes | memoryview, samples: int, length: int) -> bytes:
    """Pad the inputs of `samples` samples, whose sequences have `length` tokens, to the model's length."""
    parts: list[bytes | memoryview] = []
    data, offset = memoryview(body), 0
    for spec, short in zip(signature.inputs, _at_length(signature, padding, length).inputs, strict=True):
        size = samples * short.sample_bytes
        part = data[offset : offset + size]
        offset += size
        parts.append(_padded(spec, part, samples, padding.inputs[spec.name]) if spec.name in padding.inputs else part)
    return b"".join(parts)


def _cut(spec: TensorSpec, body: memoryview, samples: int, length: int) -> tuple[TensorSpec, memoryview]:
    """Cut the rows of padding tokens off an output of shape [samples, model length, …]; returns its new spec and bytes."""
    token_bytes = spec.sample_bytes // spec.shape[0]
    rows = np.frombuffer(body, np.uint8).reshape(samples, spec.shape[0], token_bytes)
    return replace(spec, shape=(length, *spec.shape[1:])), memoryview(rows[:, :length].tobytes())


def _padded(spec: TensorSpec, part: memoryview, samples: int, pad_value: int) -> bytes:
    dtype = np.dtype(NUMPY_TYPES[spec.datatype])
    sequences = np.frombuffer(part, dtype).reshape(samples, -1, *spec.shape[1:])
    padded = np.full((samples, *spec.shape), pad_value, dtype)
    padded[:, : sequences.shape[1]] = sequences
    return padded.tobytes()
