"""One instance from its order to its end: a slot, the right to have one Invoke in flight.

    create ▶ version published ▶ HELLO: a sandbox has begun ▶ ready ▶ batch after batch ▶ destroyed, or its sandbox was lost

Lambda has as many sandboxes as are asked for, and an idle slot costs nothing: what is bounded is how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey
from gnomon_core.memory_sizes import MEGABYTE
from gnomon_core.platform_listener import PlatformListener
from gnomon_platforms.aws_lambda.channel import LambdaChannel
from gnomon_platforms.aws_lambda.recipes import Recipe
from gnomon_platforms.remote_lives import RemoteLife


class Slot(RemoteLife[LambdaChannel]):
    """An instance of this function. It has its channel from its HELLO on."""

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
        super().__init__(instance, listener, ended)
        self.key = key
        self.recipe = recipe
        self.remote = remote
        """The function's name on Lambda."""
        self.used_mb = 0
        """The most memory that one of its sandboxes has used."""

    def resized(self, cores: int, memory_mb: int) -> None:
        """Another version serves its batches from now on."""
        self.instance = replace(self.instance, cores=cores, memory_bytes=memory_mb * MEGABYTE, memory_mb=None)

    def log(self, line: str) -> None:
        """A line that the function wrote."""
        self._listener.log_line(self.key, self.instance.id, line)
