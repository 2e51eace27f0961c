"""Nodes and instances as values: what a platform reports and what policies see."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class InstanceState(StrEnum):
    """Where an instance is in its life. It only ever moves down this list."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Node:
    """One machine or VM. Free amounts are what no instance has been given."""

    name: str
    cores: int
    memory_bytes: int
    free_cores: float
    free_memory_bytes: int


@dataclass(frozen=True, slots=True)
class Instance:
    """One running copy of a function.

    `function` is `name.namespace`; `version` changes when the deployment does so that old and new instances can be told apart.
    `busy` is whether a batch is executing, `in_flight` its requests.
    """

    id: str
    function: str
    version: int
    node: str
    cores: int
    memory_bytes: int
    state: InstanceState
    started_s: float
    busy: bool = False
    in_flight: int = 0
