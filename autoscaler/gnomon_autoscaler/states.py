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
    """The state as a JSON document."""
    return {"policy": state.policy, "version": state.version, "values": _plain(state.values)}


def state_from_json(document: JsonObject, shift_s: float = 0.0) -> PolicyState:
    """The state, its moments `shift_s` seconds later."""
    values = _value(document["values"], shift_s)
    return PolicyState(
        policy=str(document["policy"]),
        version=int(cast("int", document["version"])),
        values=values if isinstance(values, Mapping) else {},
    )


def _plain(value: StateValue) -> Json:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


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
