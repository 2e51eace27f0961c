"""One instance from when it was asked for to its end.

asked for ▶ a pod is claimed for it ▶ the pod is healthy and has its cores ▶ ready ▶ destroyed, or its pod has ended ▶ gone
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

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
    """An instance as it was asked for, and its pod. `told_here` is whether nobody but us tells its process of cores."""

    def __init__(
        self,
        instance: Instance,
        request: InstanceRequest,
        listener: PlatformListener,
        ended: Callable[[Life], None],
        *,
        told_here: bool = True,
    ) -> None:
        super().__init__(instance, listener, ended)
        self.request = request
        self._threads = request.spec.settings.cores if told_here else None
        """Those that its process uses: it is born with as many as the deployment says. None where another process leads, or has
        led, which may be killed between its pod's resizing and its telling."""
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
    def untold(self) -> bool:
        """Whether its process is to be told how many cores its pod has: it may use another number, and no other is on its way."""
        cores, pod = self.instance.cores, self.pod
        settled = pod is not None and pod.cores == cores and pod.effective_cores in (0, cores)
        return settled and self.sized_cores == cores != self._threads

    @property
    def living(self) -> bool:
        """Whether it is there, or to come."""
        return not self.gone and not self.stopping

    @property
    def healthy(self) -> bool:
        """Whether its pod is well, as its node says."""
        return self.pod is not None and self.pod.healthy

    def take(self, pod: PodFacts) -> None:
        """This is its pod. One that runs already was an earlier leader's, who may have told its process anything."""
        self.pod = pod
        if pod.phase == "Running":
            self._threads = None
            self.give(self.request.cores)

    def fits(self, pod: PodFacts) -> bool:
        """Whether its pod can take the first batch: it is healthy, and has the cores that its batches are sized by."""
        sized = self.sized_cores in (None, pod.cores)
        applied = pod.effective_cores in (0, pod.cores, self.instance.cores)
        return pod.state is InstanceState.READY and sized and applied

    def ready(self, channel: HttpChannel, restarts: int = 0) -> None:
        """Its pod takes batches."""
        self.restarts = restarts
        self.instance = replace(self.instance, concurrency=self.request.spec.settings.expected_concurrency)
        super().ready(channel)

    def tell(self) -> None:
        """Tell the listener of it as it is now, if it takes batches."""
        if self.channel is not None and self.instance.state is InstanceState.READY:
            self._listener.instance_ready(self.instance, self.channel)

    def use(self, channel: HttpChannel, cores: int) -> Coroutine[Any, Any, None]:
        """Let its process use so many threads: what is to be awaited for it."""
        self._threads = cores
        return channel.resize(cores)

    def give(self, cores: int) -> None:
        """Its pod is to have these cores, and has them once its node has come to it."""
        self.request = replace(self.request, cores=cores)
        coming = None if self.sized_cores in (None, self.instance.cores) else cores
        if coming != self.instance.coming_cores:
            self.instance = replace(self.instance, coming_cores=coming)

    def follow(self, cores: int, used: int) -> None:
        """Whoever leads has given its pod these cores, and wants it to have them; so many of them are used by now."""
        if self.instance.state is InstanceState.STARTING:
            self.instance = replace(self.instance, cores=used)
        self.give(cores)

    def keep(self, cores: int, refused: int, why: GnomonError, now_s: float) -> None:
        """Its pod was refused other cores. It goes on with these, which it has, where it is still to have the refused ones."""
        self._refused = RefusedSize(refused, why, now_s + REFUSED_S)
        if self.sized_cores == refused:
            self.follow(cores, cores)

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
