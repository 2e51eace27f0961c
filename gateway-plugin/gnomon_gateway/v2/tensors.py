"""Tensors between V2's documents and the raw little-endian bytes that a batch carries.

Everything is checked against the model's signature here, before the request is let in: names, datatypes, shapes, byte counts and,
in JSON, the kind and range of each number. NaN and infinities are numbers of a float tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.signature import ModelSignature, TensorSpec
from gnomon_gateway.v2.documents import InputDocument

DTYPES: dict[str, str] = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2", "INT32": "<i4",
    "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip
_BFLOAT = "BF16"
_MANY = 16


def read_tensors(
    signature: ModelSignature, inputs: Sequence[InputDocument], binary: memoryview, max_batch: int
) -> tuple[int, bytes | memoryview]:
    """The number of samples, and the inputs' bytes one after the other in the signature's order.

    Raises:
        GnomonError: 400 `invalid_tensor` or `batch_too_large`.

    """
    names = [tensor.name for tensor in inputs]
    wanted = [spec.name for spec in signature.inputs]
    if sorted(names) != sorted(wanted):
        raise _invalid(f"The inputs are {_list(names)}; the model takes {_list(wanted)}.")
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
            raise _invalid(f"{tensor.name} has binary_data_size {size}; its shape takes {samples * spec.sample_bytes} bytes.")
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
    ordered = [parts[name] for name in wanted]
    return samples, ordered[0] if len(ordered) == 1 else b"".join(ordered)


def _check_shape(tensor: InputDocument, spec: TensorSpec, samples: int) -> int:
    if tensor.datatype != spec.datatype:
        raise _invalid(f"{tensor.name} is {tensor.datatype[:100]!r}; the model takes {spec.datatype}.")
    if len(tensor.shape) != len(spec.shape) + 1 or tuple(tensor.shape[1:]) != spec.shape or tensor.shape[0] < 1:
        raise _invalid(f"{tensor.name} has shape {tensor.shape[:_MANY]}; the model takes [samples, {_list(spec.shape)}].")
    if samples and tensor.shape[0] != samples:
        raise _invalid(f"{tensor.name} has {tensor.shape[0]} samples, another input {samples}.")
    return tensor.shape[0]


def _from_json(tensor: InputDocument, spec: TensorSpec) -> bytes:
    """The bytes of a tensor's data, nested or flat."""
    if not isinstance(tensor.data, list):
        raise _invalid(f"{tensor.name} has no data.")
    if _holds_text(tensor.data):
        raise _invalid(f"The data of {tensor.name} is not all numbers: it holds texts.")
    try:
        values = np.array(tensor.data)
        if spec.datatype == "UINT64" and values.dtype.kind == "f":
            # numpy makes floats of numbers of which some need the 64th bit and some do not.
            values = _whole(tensor.data)
    except (ValueError, OverflowError):
        raise _invalid(f"The data of {tensor.name} is ragged or holds more than numbers.") from None
    expected = math.prod(tensor.shape)
    if values.size != expected or values.shape not in ((expected,), tuple(tensor.shape)):
        raise _invalid(f"The data of {tensor.name} has {values.size} numbers, its shape {tensor.shape} takes {expected}.")
    return _cast(values, tensor.name, spec.datatype)


def _holds_text(data: list[Any]) -> bool:
    """Whether there is a text in it, however deep.

    numpy would make a cell as long as the longest text of each number: one of 30,000 letters before 10,000 numbers took 1.2 GB.
    """
    cells, kinds = data, set(map(type, data))
    while list in kinds and str not in kinds:
        cells = list(chain.from_iterable(cells if len(kinds) == 1 else [row for row in cells if type(row) is list]))
        kinds = set(map(type, cells))
    return str in kinds


def _whole(data: list[Any]) -> np.ndarray[Any, Any]:
    """The data as Python's own numbers, which are exact."""
    values = np.array(data, dtype=object)
    whole = all(type(value) is int for value in values.flat)
    return values.astype("u8") if whole and min(values.flat) >= 0 else np.array(data)


def _cast(values: np.ndarray[Any, Any], name: str, datatype: str) -> bytes:
    kind = values.dtype.kind
    if datatype == "BOOL":
        if kind != "b":
            raise _invalid(f"The data of {name} is not all true or false.")
        return values.tobytes()
    if datatype in ("FP16", "FP32", "FP64", _BFLOAT):
        if kind not in "iuf":
            raise _invalid(f"The data of {name} is not all numbers.")
        with np.errstate(over="ignore"):
            return _bfloat(values) if datatype == _BFLOAT else values.astype(DTYPES[datatype]).tobytes()
    dtype = np.dtype(DTYPES[datatype])
    if kind not in "iu":
        raise _invalid(f"The data of {name} is not all whole numbers.")
    bounds = np.iinfo(dtype)
    if values.size and (int(values.min()) < bounds.min or int(values.max()) > bounds.max):
        raise _invalid(f"The data of {name} does not fit {datatype}.")
    return values.astype(dtype).tobytes()


def _bfloat(values: np.ndarray[Any, Any]) -> bytes:
    """The upper half of each FP32, rounded to nearest even; NaN stays NaN."""
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
    numbers: list[Any] = np.frombuffer(data, DTYPES[datatype]).tolist()
    return numbers


def _list(items: Sequence[object]) -> str:
    more = ", …" if len(items) > _MANY else ""
    return ", ".join(str(item)[:100] for item in items[:_MANY]) + more or "none"


def _invalid(message: str) -> GnomonError:
    return bad_request("invalid_tensor", message)
