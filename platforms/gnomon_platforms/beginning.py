"""How every platform begins an instance: by an id that no other instance had, and a record of what was asked for."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.seam_values import InstanceRequest


class Ids:
    """Ids that begin with a name people know, count up, and are not guessed by who knows one of them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, name: str) -> str:
        """The next one of this name."""
        return f"{name}{next(self._numbers)}-{secrets.token_hex(3)}"


class Coming:
    """Instances that were asked for, while it is read what they are made of, which may be far away.

    They count from the beginning: whoever looks meanwhile how many there are, and asks for what is missing, would have two.
    """

    def __init__(self) -> None:
        self._coming: dict[str, tuple[Instance, asyncio.Event]] = {}

    @contextmanager
    def counted(self, instance: Instance) -> Iterator[None]:
        """Count it for as long. Whoever goes on from here without a pause has it counted as what it is then."""
        begun = asyncio.Event()
        self._coming[instance.id] = instance, begun
        try:
            yield
        finally:
            del self._coming[instance.id]
            begun.set()

    def of(self, function: str) -> list[Instance]:
        """Those of a function."""
        return [instance for instance, _ in self._coming.values() if instance.function == function]

    async def begun(self, instance_id: str) -> None:
        """Return when it is an instance like others, or none after all; at once for one that is not coming."""
        if (found := self._coming.get(instance_id)) is not None:
            await found[1].wait()


def starting(instance_id: str, request: InstanceRequest, node: str, memory_bytes: int, now_s: float) -> Instance:
    """The instance that was asked for, as its platform says it while it starts."""
    return Instance(
        id=instance_id,
        function=str(request.spec.key),
        version=request.version,
        node=node,
        cores=request.cores,
        memory_bytes=memory_bytes,
        state=InstanceState.STARTING,
        started_s=now_s,
    )
