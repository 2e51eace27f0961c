"""One instance here: a slot, the right to have one batch under way at the provider.

    create ▶ the function has a replica, woken where it had none ▶ ready ▶ batch after batch ▶ destroyed, or the provider was lost

An idle slot costs nobody anything: what is bounded is how many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.seams import PlatformListener
from gnomon_platforms.provider.channel import ProviderChannel


class Slot:
    """An instance. `ended` is called once, before the listener hears of its end."""

    def __init__(self, instance: Instance, spec: FunctionSpec, listener: PlatformListener, ended: Callable[[Slot], None]) -> None:
        self.instance = instance
        self.spec = spec
        self.channel: ProviderChannel | None = None
        self._listener = listener
        self._ended = ended

    @property
    def key(self) -> FunctionKey:
        return self.spec.key

    @property
    def gone(self) -> bool:
        return self.instance.state is InstanceState.GONE

    def ready(self, channel: ProviderChannel) -> None:
        """There is a replica that can answer."""
        if self.instance.state is InstanceState.STARTING:
            self.channel = channel
            self.instance = replace(self.instance, state=InstanceState.READY)
            self._listener.instance_ready(self.instance, channel)

    def stop(self) -> None:
        """It is to end; nothing is in flight."""
        if not self.gone:
            self.instance = replace(self.instance, state=InstanceState.DRAINING)

    def end(self, reason: str) -> None:
        """It takes nothing more. May be called again."""
        if self.gone:
            return
        self.instance = replace(self.instance, state=InstanceState.GONE)
        if self.channel is not None:
            self.channel.close()
        self._ended(self)
        self._listener.instance_gone(self.instance.id, reason)
