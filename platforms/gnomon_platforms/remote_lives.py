"""One instance from when it was asked for to its end, where its process is somebody else's: a pod's, a replica's, a sandbox's.

    asked for ▶ ready, with a channel ▶ to end ▶ gone, of which the listener hears once

Processes of this machine have lives of their own, in `local`: there the platform begins and ends them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Generic, Protocol, Self, TypeVar

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.platform_listener import PlatformListener
from gnomon_core.seams import BatchChannel


class ClosableChannel(BatchChannel, Protocol):
    """A channel that its platform can end."""

    def close(self) -> None:
        """End it without a word. A batch in flight is lost."""
        ...


Channel = TypeVar("Channel", bound=ClosableChannel)


class RemoteLife(Generic[Channel]):
    """An instance. `ended` is called once, before the listener hears of its end."""

    def __init__(self, instance: Instance, listener: PlatformListener, ended: Callable[[Self], None]) -> None:
        self.instance = instance
        self.channel: Channel | None = None
        self._listener = listener
        self._ended = ended

    @property
    def gone(self) -> bool:
        return self.instance.state is InstanceState.GONE

    def ready(self, channel: Channel) -> None:
        """It takes batches, by this channel. One that was told to end meanwhile does not."""
        if self.instance.state is InstanceState.STARTING:
            self.channel = channel
            self.instance = replace(self.instance, state=InstanceState.READY)
            self._listener.instance_ready(self.instance, channel)

    def stop(self) -> None:
        """It is to end; nothing is in flight."""
        if not self.gone:
            self.instance = replace(self.instance, state=InstanceState.DRAINING)

    def end(self: Self, reason: str) -> None:
        """It takes nothing more. May be called again."""
        if self.gone:
            return
        self.instance = replace(self.instance, state=InstanceState.GONE)
        # The channel tells us of its end: each would keep the other until the garbage collector came.
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.close()
        self._ended(self)
        self._listener.instance_gone(self.instance.id, reason)
