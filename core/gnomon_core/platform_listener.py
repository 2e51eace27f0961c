"""What a platform tells whoever it makes instances for. It is the other half of the seam `Platform`, and nobody's to replace.

create ▶ instance_ready, or instance_gone ◀ destroy, a crash, a node that was lost
create_shadow ▶ pair_changed … instance_gone
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey

if TYPE_CHECKING:
    from gnomon_core.seams import BatchChannel


class PlatformListener(Protocol):
    """What a platform tells its owner. Calls come on the event loop and return at once."""

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None: ...

    def instance_gone(self, instance_id: str, reason: str) -> None:
        """The instance, Body or Shadow, has ended, asked for or not. Called exactly once for each that was created."""
        ...

    def pair_changed(self, body: Instance) -> None:
        """From its next batch on the Body works with `body.shadows` as they say, or alone without any."""
        ...

    def shadow_found(self, shadow: Instance) -> None:
        """A Shadow that an earlier process has left (`gnomon_core.lasting`) goes on for its Body, as if it had been created now.

        Nothing was told of it before. It may have to be destroyed like any other.
        """
        ...

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None: ...
