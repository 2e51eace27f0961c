"""One instance here: a slot, the right to have one batch under way at the provider.

    create ▶ the function has a replica, woken where it had none ▶ ready ▶ batch after batch ▶ destroyed, or the provider was lost

An idle slot costs nobody anything: what is bounded is how many there are.
"""

from __future__ import annotations

from collections.abc import Callable

from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.platform_listener import PlatformListener
from gnomon_platforms.provider.channel import ProviderChannel
from gnomon_platforms.remote_lives import RemoteLife


class Slot(RemoteLife[ProviderChannel]):
    """An instance of this function."""

    def __init__(self, instance: Instance, spec: FunctionSpec, listener: PlatformListener, ended: Callable[[Slot], None]) -> None:
        super().__init__(instance, listener, ended)
        self.spec = spec

    @property
    def key(self) -> FunctionKey:
        return self.spec.key
