"""One instance from when it was asked for to its end.

asked for ▶ a pod is claimed for it ▶ the pod is healthy and has its cores ▶ ready ▶ destroyed, or its pod has ended ▶ gone
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.platform_listener import PlatformListener
from gnomon_core.seam_values import InstanceRequest
from gnomon_platforms.claims import claimed_cores
from gnomon_platforms.kubernetes.channel import HttpChannel
from gnomon_platforms.kubernetes.objects.pods import PodFacts
from gnomon_platforms.kubernetes.resizing import REFUSED_S, RefusedSize
from gnomon_platforms.remote_lives import RemoteLife


class Life(RemoteLife[HttpChannel]):
    """An instance as it was asked for, and its pod."""

    def __init__(
        self, instance: Instance, request: InstanceRequest, listener: PlatformListener, ended: Callable[[Life], None]
    ) -> None:
        super().__init__(instance, listener, ended)
        self.request = request
        self.pod: PodFacts | None = None
        """As it was last seen; None while there is none."""
        self.restarts = 0
        """How often its container had been restarted when it became ready: once more, and what it held is lost."""
        self.stopping = False
        """Whether it was asked to end."""
        self._refused: RefusedSize | None = None

    @property
    def sized_cores(self) -> int | None:
        """The cores that its pod is to have; None where the deployment's own requests or limits say that."""
        cores = self.request.cores
        return cores if claimed_cores(self.request.spec, cores) != claimed_cores(self.request.spec, cores + 1) else None

    @property
    def living(self) -> bool:
        """Whether it is there, or to come."""
        return not self.gone and not self.stopping

    @property
    def healthy(self) -> bool:
        """Whether its pod is well, as its node says."""
        return self.pod is not None and self.pod.healthy

    def fits(self, pod: PodFacts) -> bool:
        """Whether its pod can take the first batch: it is healthy, and has the cores that were asked for."""
        sized = self.sized_cores in (None, pod.cores)
        applied = not pod.effective_cores or pod.effective_cores == pod.cores
        return pod.state is InstanceState.READY and sized and applied

    def ready(self, channel: HttpChannel, restarts: int = 0) -> None:
        """Its pod takes batches."""
        self.restarts = restarts
        super().ready(channel)

    def tell(self) -> None:
        """Tell the listener of it as it is now, if it takes batches."""
        if self.channel is not None and self.instance.state is InstanceState.READY:
            self._listener.instance_ready(self.instance, self.channel)

    def give(self, cores: int) -> None:
        """Its pod is to have these cores, and has them once its node has come to it."""
        self.request = replace(self.request, cores=cores)
        coming = None if self.sized_cores in (None, self.instance.cores) else cores
        if coming != self.instance.coming_cores:
            self.instance = replace(self.instance, coming_cores=coming)

    def follow(self, cores: int) -> None:
        """Whoever leads has given its pod these cores, and wants it to have them."""
        if self.instance.state is InstanceState.STARTING:
            self.instance = replace(self.instance, cores=cores)
        self.give(cores)

    def keep(self, cores: int, refused: int, why: GnomonError, now_s: float) -> None:
        """Its pod was refused other cores. It goes on with these, which it has, where it is still to have the refused ones."""
        self._refused = RefusedSize(refused, why, now_s + REFUSED_S)
        if self.sized_cores == refused:
            self.follow(cores)

    def refusal(self, cores: int, now_s: float) -> GnomonError | None:
        """Why its pod does not get so many cores for now; None where nobody has refused them."""
        refused = self._refused
        return refused.why if refused is not None and refused.cores == cores and now_s < refused.until_s else None

    def stop(self) -> None:
        """It is to end; nothing is in flight."""
        self.stopping = True
        super().stop()

    def resized(self, cores: int) -> None:
        """It has other cores from now on."""
        self.instance = replace(self.instance, cores=cores)
        self.give(self.request.cores)
