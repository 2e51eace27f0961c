"""How every platform begins an instance: by an id that no other instance had, and a record of what was asked for."""

from __future__ import annotations

import itertools
import secrets

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.seam_values import InstanceRequest


class Ids:
    """Ids that begin with a name people know, count up, and are not guessed by who knows one of them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def new(self, name: str) -> str:
        """The next one of this name."""
        return f"{name}{next(self._numbers)}-{secrets.token_hex(3)}"


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
