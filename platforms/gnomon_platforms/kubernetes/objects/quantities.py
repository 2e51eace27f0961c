"""Kubernetes quantities of cores and memory. `gnomon_core.units` parses users' texts, which allow a few more forms."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from gnomon_core.errors import bad_request
from gnomon_core.functions import FunctionSpec
from gnomon_core.units import parse_cores, parse_memory_bytes
from gnomon_platforms.common import SMALL_CLAIM_CORES, claimed_cores

_OWN_FORM = re.compile(r"\d+(\.\d+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?")
_QUANTITY = re.compile(r"\+?(\d{1,30}\.?\d{0,30}|\.\d{1,30})([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?")
_SUFFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_SUFFIXES |= {f"{letter}i": 2.0 ** (10 * power) for power, letter in enumerate("KMGTPE", start=1)}
_ENTRIES = {"cpu": 1000.0, "memory": 1.0}
_PREFIXES = (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def cpu_quantity(cores: float) -> str:
    """Cores, to the thousandth: 2 → `2`, 0.1 → `100m`."""
    thousandths = max(1, round(cores * 1000))
    return f"{thousandths}m" if thousandths % 1000 else str(thousandths // 1000)


def memory_quantity(amount_bytes: int) -> str:
    """Bytes in the largest unit that is exact: 2**27 → `128Mi`."""
    for name, unit in _PREFIXES:
        if amount_bytes and amount_bytes % unit == 0:
            return f"{amount_bytes // unit}{name}"
    return str(amount_bytes)


def resources(spec: FunctionSpec, cores: int) -> dict[str, dict[str, str]]:
    """The requests and limits of a function's container.

    The user's text is kept if Kubernetes can read it. A function with a declared size (a model, or `gnomon/cores`) has its cores
    as request and as limit; any other requests a tenth of a core and may use free cores.
    """
    limits, requests = _sent(spec, "limits"), _sent(spec, "requests")
    claim = claimed_cores(spec, cores)
    requests.setdefault("cpu", cpu_quantity(claim))
    if claim != SMALL_CLAIM_CORES and "cpu" not in _texts(spec, "requests"):
        limits.setdefault("cpu", cpu_quantity(claim))
    return {"requests": requests, "limits": limits} if limits else {"requests": requests}


def amount_of(quantity: object) -> float:
    """The number of a quantity from the API server, in any of Kubernetes' forms; 0 for anything unreadable.

    `1500m`, `2`, `1e9`, `128Mi`, `0.5G`: the API server sends quantities in the form in which they were written.
    """
    read = _QUANTITY.fullmatch(str(quantity))
    if read is None:
        return 0.0
    number, suffix = read.groups(default="")
    return float(number) * _SUFFIXES[suffix] if suffix in _SUFFIXES else float(number + suffix)


def bytes_of(quantity: object) -> int:
    """The whole bytes of a quantity from the API server, rounded up; 0 for anything unreadable."""
    return math.ceil(amount_of(quantity))


def amounts_of(quantities: Mapping[str, object]) -> dict[str, float]:
    """The amounts of several resources by name: cores, bytes or counts. Zero amounts are omitted."""
    amounts = {name: amount_of(quantity) for name, quantity in quantities.items()}
    return {name: amount for name, amount in amounts.items() if amount}


def requests_of(container_resources: Mapping[str, Any]) -> dict[str, float]:
    """The requests of a container's `resources` as the scheduler counts them: a limit counts if there is no request."""
    return amounts_of({**(container_resources.get("limits") or {}), **(container_resources.get("requests") or {})})


def _sent(spec: FunctionSpec, field: str) -> dict[str, str]:
    written: dict[str, str] = {}
    for name, value in _texts(spec, field).items():
        text = value.strip()
        if not text:
            continue
        if name == "cpu" and not _OWN_FORM.fullmatch(text):
            text = cpu_quantity(parse_cores(text))
        elif name == "memory" and not _OWN_FORM.fullmatch(text):
            text = memory_quantity(parse_memory_bytes(text))
        elif name not in _ENTRIES and not text.isdigit():
            raise bad_request(
                "invalid_deployment", f"{field}: {name[:100]!r} is {text[:50]!r}.", "Request a whole number of devices."
            )
        written[name] = text
    return written


def _texts(spec: FunctionSpec, field: str) -> Mapping[str, Any]:
    sent = spec.raw.get(field)
    return sent if isinstance(sent, dict) else {}
