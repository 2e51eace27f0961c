"""The function registration table: every instance of the node that can be part of a pair.

A record has an instance's kind, its partners, the blocks that they share, and its status. Partners always name each other. A
Shadow has one partner, a Body may have several. An operation that would break this is a programming error, never an instance's,
and raises.

    id          type     partners               blocks   status    epoch
    resnet-1    body     resnet-s7, resnet-s9   3 4 5    paired    2
    resnet-s7   shadow   resnet-1               3 4 5    paired    2
    resnet-s9   shadow   resnet-1               3 4 5    paired    2
    pool-2-4    empty                                    ready     2

AsyFunc, section 5.2 (Function Registration Table).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    """The kind of an instance. An empty container may become a Shadow, and a Shadow a Body."""

    BODY = "body"
    SHADOW = "shadow"
    EMPTY = "empty"


class Status(StrEnum):
    """The status of an instance."""

    SILENT = "silent"
    """The instance has sent nothing to this coordinator."""
    READY = "ready"
    """A Body that works alone, a container that can be loaded, or a Shadow that has registered."""
    LOADING = "loading"
    PAIRING = "pairing"
    """A Body or Shadow that was told to pair, before the Body has confirmed it."""
    PAIRED = "paired"
    ENDING = "ending"
    BARRED = "barred"
    """A Body that broke the protocol. It serves on, without a Shadow."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row of the table. A Body has the `blocks` of all its Shadows. `epoch` is that of the last change."""

    id: str
    kind: Kind
    status: Status = Status.SILENT
    partners: tuple[str, ...] = ()
    blocks: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    epoch: int = 0

    @property
    def partner(self) -> str | None:
        """The first partner; a Shadow has no other."""
        return self.partners[0] if self.partners else None


class RegistrationTable:
    """The rows by id, in the order of their insertion."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._rows: dict[str, Record] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, instance_id: object) -> bool:
        return instance_id in self._rows

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._rows.values()))

    def get(self, instance_id: str | None) -> Record | None:
        return None if instance_id is None else self._rows.get(instance_id)

    def of_kind(self, kind: Kind, *statuses: Status) -> list[Record]:
        """The rows of a kind, with one of these statuses where any are named."""
        return [row for row in self if row.kind is kind and (not statuses or row.status in statuses)]

    def insert(self, instance_id: str, kind: Kind, status: Status = Status.SILENT) -> Record:
        """Add a row without partners.

        Raises:
            ValueError: the id is taken.

        """
        if instance_id in self._rows:
            raise ValueError(f"{instance_id} is registered already")
        return self._put(Record(instance_id, kind, status))

    def remove(self, instance_id: str) -> Record | None:
        """Remove a row and its partners' links to it. Returns the row as it was; None if there was none."""
        row = self._rows.get(instance_id)
        if row is not None:
            self.unlink(instance_id)
            del self._rows[instance_id]
        return row

    def set_status(self, instance_id: str, status: Status) -> Record:
        return self._put(replace(self._rows[instance_id], status=status))

    def link(self, body_id: str, shadow_id: str, blocks: tuple[int, ...], split: tuple[int, ...]) -> None:
        """Make two instances partners, or change what partners do together.

        Raises:
            ValueError: they are not a Body and a Shadow, or the Shadow has another Body.

        """
        body, shadow = self._rows.get(body_id), self._rows.get(shadow_id)
        if body is None or shadow is None or body.kind is not Kind.BODY or shadow.kind is not Kind.SHADOW:
            raise ValueError(f"{body_id} and {shadow_id} are not a Body and a Shadow")
        if shadow.partner not in (None, body_id):
            raise ValueError(f"{shadow_id} has another partner")
        self._put(replace(shadow, partners=(body_id,), blocks=blocks, split=split))
        partners = body.partners if shadow_id in body.partners else (*body.partners, shadow_id)
        self._count_blocks(replace(body, partners=partners))

    def unlink(self, instance_id: str) -> None:
        """End a Shadow's partnership, or all of a Body's. Does nothing without a partner."""
        row = self._rows.get(instance_id)
        if row is None:
            return
        for shadow_id in row.partners if row.kind is Kind.BODY else (row.id,):
            shadow = self._rows[shadow_id]
            body = self._rows.get(shadow.partner or "")
            self._put(replace(shadow, partners=(), blocks=(), split=()))
            if body is not None:
                left = tuple(partner for partner in body.partners if partner != shadow_id)
                self._count_blocks(replace(body, partners=left))

    def _count_blocks(self, body: Record) -> None:
        blocks = {block for shadow_id in body.partners for block in self._rows[shadow_id].blocks}
        self._put(replace(body, blocks=tuple(sorted(blocks))))

    def _put(self, row: Record) -> Record:
        row = self._rows[row.id] = replace(row, epoch=self._epoch)
        return row
