"""The constraints of a query to an application, from the parameters of an infer request or from headers.

    parameters   latency_ms   accuracy   accuracy_floor   cost   model   variant   nearest
    headers      X-Gnomon-Latency-Ms, X-Gnomon-Accuracy, X-Gnomon-Accuracy-Floor, X-Gnomon-Cost, X-Gnomon-Model,
                 X-Gnomon-Variant, X-Gnomon-Nearest

A constraint may be in both places if both say the same. An unreadable constraint is refused, and so is a parameter that is nearly
the name of one: a query whose `latency` is silently ignored gets an answer that its author did not ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from gnomon_core.applications import invalid_accuracy
from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.nearest_names import did_you_mean, misspelt
from gnomon_core.variants import Query

SERVE, SUGGEST = "serve", "suggest"
"""Values of `nearest`, if no variant satisfies the query: the nearest variant answers, or is only named in the refusal."""
NAMES = ("latency_ms", "accuracy", "accuracy_floor", "cost", "model", "variant", "nearest")
HEADERS: Mapping[bytes, str] = {b"x-gnomon-" + name.replace("_", "-").encode(): name for name in NAMES}
VARIANT_HEADER, NEAREST_HEADER = b"x-gnomon-variant", b"x-gnomon-nearest"
DEGRADED_HEADER = b"x-gnomon-degraded-accuracy"
"""The header of an answer that is less accurate than wished: the accuracy of the variant that gave it."""
_OTHER_PARAMETERS = frozenset({"binary_data_output", "priority", "timeout", "sequence_id", "sequence_start", "sequence_end"})
_MOST_PARAMETERS = 32
"""The most parameters of a request. Each unknown name is compared with all known ones, on the event loop."""
_MOST_CHARACTERS = 200
"""The most characters of a constraint. Constraints are stored as they were sent."""
_FORMER = {"latency": "latency_ms", "latency_s": "latency_ms", "latency-ms": "latency_ms", "architecture": "model"}


@dataclass(frozen=True, slots=True)
class Constraints:
    """A query, and whether the nearest variant may answer it."""

    query: Query
    serve_nearest: bool = False


NO_CONSTRAINTS = Constraints(Query())


def read_constraints(headers: Mapping[bytes, bytes], parameters: Mapping[str, Any] | None = None) -> Constraints:
    """The constraints of a request. Names of headers are lower-case.

    Equal requests have equal constraints: those of the last `_MOST_KEPT` different ones are kept.

    Raises:
        GnomonError: 400 with what is allowed.

    """
    # Clients send few of the headers, most of them the same ones with each request.
    header_values = tuple([(header, headers[header]) for header in HEADERS if header in headers])
    if not parameters:
        return _of_headers(header_values) if header_values else NO_CONSTRAINTS
    if len(parameters) > _MOST_PARAMETERS:
        raise bad_request(
            "too_many_parameters",
            f"The request has {len(parameters)} parameters.",
            f"Send at most {_MOST_PARAMETERS} to an application; constraints are {', '.join(NAMES)}.",
        )
    constraints = {}
    for name, value in parameters.items():
        if name in _READERS:
            constraints[name] = value
        elif name not in _OTHER_PARAMETERS and (meant := _FORMER.get(name) or misspelt(name, NAMES)):
            raise bad_request("unknown_constraint", f"parameter {name[:100]!r} is not known.", did_you_mean(meant, NAMES))
    if not constraints:
        return _of_headers(header_values) if header_values else NO_CONSTRAINTS
    typed = tuple((name, type(value), value) for name, value in constraints.items())
    try:
        return _of_both(header_values, typed)
    except TypeError:  # not hashable: a list or an object, which no constraint is
        return _of_both.__wrapped__(header_values, typed)


_MOST_KEPT = 1024


@lru_cache(maxsize=_MOST_KEPT)
def _of_headers(header_values: tuple[tuple[bytes, bytes], ...]) -> Constraints:
    return _of({name: _READERS[name](name, text) for name, text in _texts(header_values)})


@lru_cache(maxsize=_MOST_KEPT)
def _of_both(header_values: tuple[tuple[bytes, bytes], ...], parameters: tuple[tuple[str, type, Any], ...]) -> Constraints:
    """The constraints of headers and parameters together. Types are part of the cache's key, because 1 == True."""
    texts = dict(_texts(header_values))
    values = {name: _READERS[name](name, value) for name, _, value in parameters}
    for name, text in texts.items():
        read = _READERS[name](name, text)
        if read != values.setdefault(name, read):
            value = next(value for key, _, value in parameters if key == name)
            message = f"{name} is {_shown(value)} and its header says {_shown(text)}."
            raise bad_request("contradicting_constraint", message, "Send one of them.")
    return _of(values)


def _texts(header_values: tuple[tuple[bytes, bytes], ...]) -> list[tuple[str, str]]:
    return [(HEADERS[header], value.decode("latin-1")) for header, value in header_values]


def _of(values: Mapping[str, Any]) -> Constraints:
    latency_ms, accuracy, floor = values.get("latency_ms"), values.get("accuracy"), values.get("accuracy_floor")
    if floor is not None and (accuracy is None or floor > accuracy):
        wished = "accuracy is not given" if accuracy is None else f"accuracy is {accuracy:g}"
        hint = "It is the least accuracy that you accept beside a wished one: send both, the floor from 0 to accuracy."
        raise bad_request("invalid_constraint", f"accuracy_floor is {floor:g}, and {wished}.", hint)
    query = Query(
        latency_s=None if latency_ms is None else latency_ms / 1e3,
        accuracy=accuracy,
        accuracy_floor=floor,
        cost_per_s=values.get("cost"),
        architecture=values.get("model"),
        variant=values.get("variant"),
    )
    return Constraints(query, values.get("nearest") == SERVE)


def _number(value: object) -> float:
    """The number of a parameter, or of a header's text; NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return math.nan
    if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def _positive(name: str, value: object) -> float:
    number = _number(value)
    if not 0.0 < number < math.inf:
        unit = "milliseconds" if name == "latency_ms" else "cores in use, the unit of a variant's cost_per_s"
        raise _invalid(name, value, f"It is a number above 0, in {unit}.")
    return number


def _accuracy(name: str, value: object) -> float:
    number = _number(value)
    if not 0.0 <= number <= 1.0:
        raise invalid_accuracy(name, value)
    return number


def _name(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > _MOST_CHARACTERS:
        raise _invalid(name, value, f"It is the name of a {name} of the application, of at most {_MOST_CHARACTERS} characters.")
    return value.strip()


def _nearest(name: str, value: object) -> str:
    if value not in (SERVE, SUGGEST):
        raise _invalid(name, value, f"It is {SERVE} or {SUGGEST}.")
    return str(value)


def _invalid(name: str, value: object, allowed: str) -> GnomonError:
    return bad_request("invalid_constraint", f"{name} is {_shown(value)}.", allowed)


def _shown(value: object) -> str:
    """The beginning of a client's value, for a message."""
    return repr(str(value)[:50])


_READERS: Mapping[str, Callable[[str, object], Any]] = {
    "latency_ms": _positive,
    "accuracy": _accuracy,
    "accuracy_floor": _accuracy,
    "cost": _positive,
    "model": _name,
    "variant": _name,
    "nearest": _nearest,
}
