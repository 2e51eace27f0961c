"""The JSON documents of the open inference protocol, as far as they are read.

Reading keeps the event loop busy, so what it may cost is bounded by what the model could use: 60 MB of zeros took 3 s to read and
refuse. A document is looked over before it is decoded: a comma for each value, and exponents at the edge of what a float holds,
which msgspec reads two hundred times slower than others.
"""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from gnomon_core.errors import bad_request

_NOT_JSON_NUMBERS = (b"NaN", b"Infinity")
_FAR_EXPONENT = re.compile(rb"[eE][-+]?0*[2-9]\d\d")
_FEW_EXPONENTS = 64
_PAIR = re.compile(rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_OTHER_COMMAS = 4096
"""For names, shapes and parameters."""


class InputDocument(msgspec.Struct):
    """A tensor in a request: its data here, or `binary_data_size` bytes behind the document."""

    name: str
    shape: list[int]
    datatype: str
    parameters: dict[str, Any] = {}
    data: Any = None


class OutputDocument(msgspec.Struct):
    """An output that the client wants."""

    name: str
    parameters: dict[str, Any] = {}


class InferDocument(msgspec.Struct):
    """The body of an infer request, or its beginning."""

    inputs: list[InputDocument]
    id: str = ""
    parameters: dict[str, Any] = {}
    outputs: list[OutputDocument] | None = None


_DECODER = msgspec.json.Decoder(InferDocument)


def read_infer(text: bytes | memoryview, most_values: int) -> InferDocument:
    """The document, which may hold this many numbers.

    JSON knows no NaN, but Python's json writes it and other servers take it, so it is taken here.

    Raises:
        GnomonError: 400 `invalid_request`, saying where it is wrong; 400 `batch_too_large` for too many numbers.

    """
    data = text if isinstance(text, bytes) else bytes(text)
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
        raise bad_request("invalid_request", f"The inference request is wrong: {str(error)[:500]}.") from None
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
    """The same by Python's json, which takes halves of characters too. No answer could be written with one, so it is no text."""
    document = msgspec.convert(json.loads(data.decode()), InferDocument)
    if _SURROGATE.search(_PAIR.sub(b"", data.replace(rb"\\", b""))):
        raise ValueError("a text holds half of a character, a surrogate without the other")
    return document
