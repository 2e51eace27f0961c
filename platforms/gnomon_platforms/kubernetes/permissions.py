"""A table of what a program asks of the API server, and for what: its roles say the same, and `gnomon doctor` asks for each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """Where a rule holds: in the namespace of functions, in our own, in that of the nodes' coordinators, or everywhere."""

    FUNCTIONS = "functions"
    SYSTEM = "system"
    NODES = "nodes"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Permission:
    """Verbs on one resource: `pods`, or a subresource such as `pods/resize`. `group` is empty for the core's.

    `only` is the one name that may be asked for; empty for all.
    """

    scope: Scope
    group: str
    resource: str
    verbs: tuple[str, ...]
    why: str
    only: str = ""

    @property
    def name(self) -> str:
        """As kubectl writes it: `deployments.apps/scale`."""
        plural, slash, subresource = self.resource.partition("/")
        return f"{plural}{f'.{self.group}' if self.group else ''}{slash}{subresource}"
