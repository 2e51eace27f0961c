"""One instance from its order to its end: a slot, the right to have one Invoke in flight.

    create ▶ version published ▶ HELLO: a sandbox has begun ▶ ready ▶ batch after batch ▶ destroyed, or its sandbox was lost

Lambda has as many sandboxes as are asked for, and an idle slot costs nothing: what is bounded is how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.memory_sizes import MEGABYTE
from gnomon_core.seams import PlatformListener
from gnomon_platforms.aws_lambda.channel import LambdaChannel
from gnomon_platforms.aws_lambda.recipes import Recipe


class Slot:
    """An instance. `ended` is called once, before the listener hears of its end."""

    def __init__(
        self,
        instance: Instance,
        key: FunctionKey,
        recipe: Recipe,
        remote: str,
        *,
        listener: PlatformListener,
        ended: Callable[[Slot], None],
    ) -> None:
        self.instance = instance
        self.key = key
        self.recipe = recipe
        self.remote = remote
        """The function's name on Lambda."""
        self.used_mb = 0
        """The most memory that one of its sandboxes has used."""
        self.channel: LambdaChannel | None = None
        self._listener = listener
        self._ended = ended

    @property
    def gone(self) -> bool:
        return self.instance.state is InstanceState.GONE

    def ready(self) -> None:
        """A sandbox has answered."""
        if not self.gone and self.channel is not None:
            self.instance = replace(self.instance, state=InstanceState.READY)
            self._listener.instance_ready(self.instance, self.channel)

    def resized(self, cores: int, memory_mb: int) -> None:
        """Another version serves its batches from now on."""
        self.instance = replace(self.instance, cores=cores, memory_bytes=memory_mb * MEGABYTE, memory_mb=None)

    def log(self, line: str) -> None:
        """A line that the function wrote."""
        self._listener.log_line(self.key, self.instance.id, line)

    def end(self, reason: str) -> None:
        """It takes nothing more. May be called again."""
        if self.gone:
            return
        self.instance = replace(self.instance, state=InstanceState.GONE)
        if self.channel is not None:
            self.channel.close()
        self._ended(self)
        self._listener.instance_gone(self.instance.id, reason)
