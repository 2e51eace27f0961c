"""The JSON documents of the open inference protocol, as far as they are read."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gnomon_core.errors import bad_request

_NOT_JSON_NUMBERS = (b"NaN", b"Infinity")


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


def read_infer(text: bytes | memoryview) -> InferDocument:
    """The document.

    JSON knows no NaN, but Python's json writes it and other servers take it, so it is taken here.

    Raises:
        GnomonError: 400 `invalid_request`, saying where it is wrong.

    """
    try:
        return _DECODER.decode(text)
    except (msgspec.ValidationError, RecursionError) as error:
        raise bad_request("invalid_request", f"The inference request is wrong: {error}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        data = bytes(text)
        if any(word in data for word in _NOT_JSON_NUMBERS):
            try:
                return msgspec.convert(json.loads(data), InferDocument)
            except (ValueError, RecursionError):
                pass
        raise bad_request("invalid_request", f"The inference request is not JSON: {error}.") from None
