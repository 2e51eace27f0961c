"""A policy's memory as JSON, and moved to another clock.

Seconds of a monotonic clock mean nothing after a reboot or on another machine. A memory names its moments with keys that end in
`_at_s`; when it is restored, each is shifted so that it lies as long ago as it did, plus the time in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gnomon_core.json_types import Json, JsonObject
from gnomon_core.scaling import PolicyState, StateValue

_MOMENT = "_at_s"


def state_to_json(state: PolicyState) -> JsonObject:
    """The state as a JSON document.

    Raises:
        TypeError: it holds what is no JSON. A third party's policy need not have been type-checked.

    """
    return {"policy": state.policy, "version": state.version, "values": _plain(state.values)}


def state_from_json(document: JsonObject, shift_s: float = 0.0) -> PolicyState:
    """The state, its moments `shift_s` seconds later."""
    values = _value(document["values"], shift_s)
    return PolicyState(
        policy=str(document["policy"]),
        version=int(cast("int", document["version"])),
        values=values if isinstance(values, Mapping) else {},
    )


def _plain(value: object) -> Json:
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {_name(key): _plain(item) for key, item in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    msg = f"{type(value).__name__} is no JSON"
    raise TypeError(msg)


def _name(key: object) -> str:
    if isinstance(key, str):
        return key
    msg = f"a {type(key).__name__} names no value in JSON"
    raise TypeError(msg)


def _value(value: Json, shift_s: float) -> StateValue:
    if isinstance(value, Mapping):
        return {key: _shifted(item, shift_s) if key.endswith(_MOMENT) else _value(item, shift_s) for key, item in value.items()}
    if isinstance(value, str) or value is None or isinstance(value, bool | int | float):
        return value
    return tuple(_value(item, shift_s) for item in value)


def _shifted(value: Json, shift_s: float) -> StateValue:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value + shift_s
    if value is None or isinstance(value, str | bool | Mapping):
        return _value(value, shift_s)
    return tuple(_shifted(item, shift_s) for item in value)
