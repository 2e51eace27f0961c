"""Placement constraints: OpenFaaS's constraints as node selectors, affinity and tolerations; the same of any pod.

zone=a, zone==a            only on nodes whose label says so
zone!=a                    only on nodes whose label does not
tolerate:gpu               also on nodes with this taint, whatever its value and effect
tolerate:gpu=a:NoSchedule  also on nodes with this taint
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnomon_core.errors import GnomonError, bad_request
from gnomon_platforms.kubernetes.objects.names import is_key

TOLERATE = "tolerate:"
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True, slots=True)
class Placing:
    """A pod's constraints on nodes. If there are `terms`, a node must meet all expressions of at least one."""

    node_selector: dict[str, str] = field(default_factory=dict)
    terms: list[list[dict[str, Any]]] = field(default_factory=list)
    tolerations: list[dict[str, Any]] = field(default_factory=list)

    def fields(self) -> dict[str, Any]:
        """The fields for a pod's specification; empty ones are omitted."""
        fields: dict[str, Any] = {}
        if self.node_selector:
            fields["nodeSelector"] = self.node_selector
        if self.terms:
            listed = [{"matchExpressions": expressions} for expressions in self.terms]
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": listed}}
            fields["affinity"] = {"nodeAffinity": required}
        if self.tolerations:
            fields["tolerations"] = self.tolerations
        return fields


def read_constraints(constraints: Iterable[str]) -> Placing:
    """Parse a function's constraints.

    Raises:
        GnomonError: 400 `invalid_constraint`, with the valid forms.

    """
    placing, unwanted = Placing(), list[dict[str, Any]]()
    for text in constraints:
        if text.startswith(TOLERATE):
            placing.tolerations.append(_toleration(text))
            continue
        name, operator, value = _split(text)
        if operator == "NotIn":
            unwanted.append({"key": name, "operator": operator, "values": [value]})
        else:
            placing.node_selector[name] = value
    if unwanted:
        placing.terms.append(unwanted)
    return placing


def constraints_of(pod: dict[str, Any]) -> tuple[str, ...]:
    """The constraints that a pod's node selector expresses."""
    return tuple(f"{name}={value}" for name, value in sorted((pod.get("nodeSelector") or {}).items()))


def placing_of(pod: Mapping[str, Any]) -> Placing:
    """The constraints of any user's pod. A node's name counts as one of its labels, `metadata.name`."""
    of_nodes = (pod.get("affinity") or {}).get("nodeAffinity") or {}
    required = of_nodes.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms = [
        [*(term.get("matchExpressions") or ()), *(term.get("matchFields") or ())]
        for term in required.get("nodeSelectorTerms") or ()
    ]
    return Placing(dict(pod.get("nodeSelector") or {}), terms, list(pod.get("tolerations") or ()))


def near(labels: Mapping[str, str], namespace: str) -> dict[str, Any]:
    """The affinity of a pod that prefers nodes with a pod of these labels, and takes another where none has room."""
    term = {
        "labelSelector": {"matchLabels": dict(labels)},
        "namespaces": [namespace],
        "topologyKey": "kubernetes.io/hostname",
    }
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}}


def _split(text: str) -> tuple[str, str, str]:
    sign = next((sign for sign in ("!=", "==", "=") if sign in text), "=")
    name, _, value = (part.strip() for part in text.partition(sign))
    if not is_key(name) or not value:
        raise _invalid(text)
    return name, "NotIn" if sign == "!=" else "In", value


def _toleration(text: str) -> dict[str, str]:
    taint, colon, effect = text.removeprefix(TOLERATE).strip().partition(":")
    name, equals, value = taint.partition("=")
    if not is_key(name) or (colon and effect not in _EFFECTS):
        raise _invalid(text)
    toleration = {"key": name, "operator": "Equal", "value": value} if equals else {"key": name, "operator": "Exists"}
    return {**toleration, "effect": effect} if colon else toleration


def _invalid(text: str) -> GnomonError:
    return bad_request(
        "invalid_constraint",
        f"The constraint {text[:100]!r} cannot be read.",
        f"Write label=value, label!=value or {TOLERATE}taint[=value][:{'|'.join(_EFFECTS)}].",
    )
