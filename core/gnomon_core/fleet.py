"""Nodes and instances as values: what a platform reports and what policies see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from gnomon_core.pairs import Pair, together


class InstanceKind(StrEnum):
    """The kind of an instance: it takes requests, with a whole model or a user's code, or computes blocks for one that does."""

    BODY = "body"
    SHADOW = "shadow"


class InstanceState(StrEnum):
    """The lifecycle state of an instance. States only advance in this order."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine or VM with its capacity. Free amounts are not allocated to any instance.

    `reserve_cores` are free as well, beside `free_cores`, and held for Shadows: a Body gets them if no node has other free cores.
    `pairs` is whether a Shadow can be made there now, `lends` whether instances there can borrow cores for a batch.
    """

    name: str
    cores: int
    memory_bytes: int
    free_cores: float
    free_memory_bytes: int
    reserve_cores: float = 0.0
    pairs: bool = True
    lends: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """A running copy of a function.

    `function` is `name.namespace`; `version` changes when the deployment does so that old and new instances can be told apart.
    `busy` is whether a batch is executing, `in_flight` its requests. `partner` is a Shadow's Body, or a Body's first Shadow once
    it is registered, and `others` are a Body's further ones; `pair` is what they do together, None for a Body that works alone.
    `memory_mb` is a memory size that it was given and that its cores follow from, as on Lambda; None where it was given cores.
    `coming_cores` is how many it will have once its node has applied a resize, as on Kubernetes; None without a pending resize.
    `concurrency` is how many batches it executes at once. `idle_cores` are those that it keeps between batches, where it borrows
    up to `cores` of its node for each batch; None where all its cores are its own.
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
    kind: InstanceKind = InstanceKind.BODY
    partner: str | None = None
    pair: Pair | None = None
    others: tuple[str, ...] = ()
    memory_mb: int | None = None
    coming_cores: int | None = None
    concurrency: int = 1
    idle_cores: int | None = None

    @property
    def size(self) -> int:
        """The key by which a profile looks up its speed: its cores, or the memory size in MB if the cores follow from that."""
        return self.cores if self.memory_mb is None else self.memory_mb

    @property
    def given_cores(self) -> int:
        """Cores after a pending resize; without one, the present cores."""
        return self.cores if self.coming_cores is None else self.coming_cores

    @property
    def shadows(self) -> dict[str, Pair]:
        """A Body's Shadows with the pair of each, in the order of their rows."""
        if self.partner is None or self.pair is None:
            return {}
        return dict(zip((self.partner, *self.others), self.pair.each, strict=True))

    def working_with(self, shadows: Mapping[str, Pair]) -> Instance:
        """Return this Body as paired with `shadows`."""
        names = tuple(shadows)
        return replace(self, partner=names[0] if names else None, others=names[1:], pair=together(tuple(shadows.values())))
