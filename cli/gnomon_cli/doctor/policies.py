"""NetworkPolicies as Kubernetes reads them: whom they let in to a pod, and at which of its ports.

    policies of its namespace ▶ those that choose the pod ▶ their rules ▶ does one let this comer in at this port?

A pod that none of them chooses takes everybody. Whether anybody enforces them, only the cluster's network knows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gnomon_platforms.kubernetes.nodes import meets

NAMESPACE_LABEL = "kubernetes.io/metadata.name"
"""Each namespace has it, with its name."""


@dataclass(frozen=True, slots=True)
class Comer:
    """A pod that wants to come in: its namespace's labels and its own. `beside` is whether that is the policies' namespace."""

    namespace: Mapping[str, str]
    pod: Mapping[str, str]
    beside: bool = False


@dataclass(frozen=True, slots=True)
class Door:
    """Where it wants to come in: a port, and which ports the pod's own names stand for."""

    port: int
    named: Mapping[str, int] = field(default_factory=dict)


def ways_in(policies: Iterable[Mapping[str, Any]], pod: Mapping[str, str]) -> list[Mapping[str, Any]] | None:
    """The rules by which a namespace's policies let anybody in to pods with these labels; None where they shut nobody out."""
    specs = [one.get("spec") or {} for one in policies]
    theirs = [
        spec
        for spec in specs
        if "Ingress" in (spec.get("policyTypes") or ("Ingress",)) and chooses(spec.get("podSelector") or {}, pod)
    ]
    return [rule for spec in theirs for rule in spec.get("ingress") or ()] if theirs else None


def shut_out(rules: Iterable[Mapping[str, Any]] | None, door: Door, comer: Comer) -> bool:
    """Whether `ways_in` leave this one outside."""
    return rules is not None and not any(lets_in(rule, door, comer) for rule in rules)


def lets_in(rule: Mapping[str, Any], door: Door, comer: Comer) -> bool:
    """Whether a rule of a NetworkPolicy lets this one in there.

    An operator's own addresses are taken to be those that they should be.
    """
    ports, peers = rule.get("ports"), rule.get("from")
    if ports and not any(_opens(one, door) for one in ports):
        return False
    return not peers or any("ipBlock" in one or selects(one, comer) for one in peers)


def selects(peer: Mapping[str, Any], comer: Comer) -> bool:
    """Whether a rule's peer is this one. A peer without a selector of namespaces is of the policy's own."""
    within = chooses(peer["namespaceSelector"], comer.namespace) if "namespaceSelector" in peer else comer.beside
    return within and chooses(peer.get("podSelector") or {}, comer.pod)


def chooses(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a selector of labels chooses what has these."""
    named = (selector.get("matchLabels") or {}).items() <= labels.items()
    return named and all(meets(labels, expression) for expression in selector.get("matchExpressions") or ())


def _opens(one: Mapping[str, Any], door: Door) -> bool:
    """Whether an entry of a rule's ports is this one, or a range with it. One that names no port is all of them."""
    if (one.get("protocol") or "TCP") != "TCP":
        return False
    first: int | str | None = one.get("port")
    if isinstance(first, str):
        return door.named.get(first) == door.port
    return first is None or first <= door.port <= int(one.get("endPort") or first)
