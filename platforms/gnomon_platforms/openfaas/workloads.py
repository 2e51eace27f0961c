"""Reconciliation of one function in the cluster: its instances, and the pods that they wait for, have, or release.

Every event (an instance is requested or destroyed, a pod changes, a step fails) only triggers reconciliation: `planning` computes
the steps, `steps` writes them. Each function has one task, so that its steps never overlap with those of the next plan. There is
no polling, but a pod that does not become ready, and a refused step, are checked again after a few seconds.

`Life` is the record of one instance:

requested ▶ a pod is claimed for it ▶ the pod is healthy and has its cores ▶ ready ▶ destroyed, or its pod has ended ▶ gone

`adoptable` and `instance_of` decide which pods of an earlier process continue as instances. `Surroundings` is the context that a
`Workload` shares with the other functions of a fleet.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gnomon_core.addresses import http_url
from gnomon_core.background import Background
from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import InstanceRequest, PlatformListener
from gnomon_platforms.common import RemoteInstance, claimed_cores, starting
from gnomon_platforms.kubernetes.channel import Heard, HttpChannel
from gnomon_platforms.kubernetes.client import lasts
from gnomon_platforms.kubernetes.ledger import Ledger
from gnomon_platforms.kubernetes.nodes import Given, given_to
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.names import PORT
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES, RESIZE, PodFacts
from gnomon_platforms.kubernetes.resources import REFUSED_S, RefusedSize
from gnomon_platforms.openfaas.events import RESIZE_PENDING, START_FAILED
from gnomon_platforms.openfaas.planning import VICTIM_COST, Claim, Deploy, Resize, Scale, Step, Unseen, Waiting, Wanted, plan
from gnomon_platforms.openfaas.steps import Steps

if TYPE_CHECKING:
    import aiohttp


class Life(RemoteInstance[HttpChannel]):
    """The record of an instance: its request and its pod. `told_here` is whether only this process has set its threads."""

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
        """The threads of its process, initially the deployment's cores. None (unknown) if another process leads or has led: that
        one may be killed after it has resized the pod, and before it has set the threads."""
        self.pod: PodFacts | None = None
        """The pod as last seen; None while there is none."""
        self.restarts = 0
        """The container's restart count when the instance became ready: with another restart its batches are lost."""
        self.stopping = False
        """Whether its end was requested."""
        self._refused: RefusedSize | None = None

    @property
    def sized_cores(self) -> int | None:
        """The cores that its pod should have; None if the deployment's own requests or limits set them."""
        cores = self.request.cores
        return cores if claimed_cores(self.request.spec, cores) != claimed_cores(self.request.spec, cores + 1) else None

    @property
    def untold(self) -> bool:
        """Whether its process must be notified of its pod's cores: its threads may differ, and no resize is pending."""
        cores, pod = self.instance.cores, self.pod
        settled = pod is not None and pod.cores == cores and pod.effective_cores in (0, cores)
        return settled and self.sized_cores == cores != self._threads

    @property
    def living(self) -> bool:
        """Whether the instance exists or starts, and is not ending."""
        return not self.gone and not self.stopping

    @property
    def healthy(self) -> bool:
        """Whether its pod is healthy, by the pod's status."""
        return self.pod is not None and self.pod.healthy

    def take(self, pod: PodFacts) -> None:
        """Set its pod. If the pod already runs, it was an earlier leader's, and the threads of its process are unknown."""
        self.pod = pod
        if pod.phase == "Running":
            self._threads = None
            self.give(self.request.cores)

    def fits(self, pod: PodFacts) -> bool:
        """Whether its pod can take the first batch: it is healthy, and has the cores for which batches are sized."""
        sized = self.sized_cores in (None, pod.cores)
        applied = pod.effective_cores in (0, pod.cores, self.instance.cores)
        return pod.state is InstanceState.READY and sized and applied

    def ready(self, channel: HttpChannel, restarts: int = 0) -> None:
        """Mark the instance as ready: its pod takes batches."""
        self.restarts = restarts
        self.instance = replace(self.instance, concurrency=self.request.spec.settings.expected_concurrency)
        super().ready(channel)

    def tell(self) -> None:
        """Notify the listener of the instance's present state, if it takes batches."""
        if self.channel is not None and self.instance.state is InstanceState.READY:
            self._listener.instance_ready(self.instance, self.channel)

    def use(self, channel: HttpChannel, cores: int) -> Coroutine[Any, Any, None]:
        """Set the number of threads of its process; the coroutine that sends it."""
        self._threads = cores
        return channel.resize(cores)

    def give(self, cores: int) -> None:
        """Request these cores for its pod; until its node has resized the pod, they are `coming_cores`."""
        self.request = replace(self.request, cores=cores)
        coming = None if self.sized_cores in (None, self.instance.cores) else cores
        if coming != self.instance.coming_cores:
            self.instance = replace(self.instance, coming_cores=coming)

    def follow(self, cores: int, used: int) -> None:
        """Take over the cores that the leader has requested for its pod, of which `used` are in use by now."""
        if self.instance.state is InstanceState.STARTING:
            self.instance = replace(self.instance, cores=used)
        self.give(cores)

    def keep(self, cores: int, refused: int, why: GnomonError, now_s: float) -> None:
        """Record that a resize was refused, and keep the present cores if the refused ones are still requested."""
        self._refused = RefusedSize(refused, why, now_s + REFUSED_S)
        if self.sized_cores == refused:
            self.follow(cores, cores)

    def refusal(self, cores: int, now_s: float) -> GnomonError | None:
        """The error by which this number of cores was refused recently; None if it was not."""
        refused = self._refused
        return refused.why if refused is not None and refused.cores == cores and now_s < refused.until_s else None

    def stop(self) -> None:
        """End the instance; nothing is in flight."""
        self.stopping = True
        super().stop()

    def resized(self, cores: int) -> None:
        """Record that the pod's resize has been applied."""
        self.instance = replace(self.instance, cores=cores)
        self.give(self.request.cores)


def may_be_found(pod: PodFacts, version: int, *, placed: bool) -> bool:
    """Whether a pod can continue as its instance, up to this version; with `placed` only if it has a node."""
    return adoptable(pod, version) and not (placed and pod.node is None)


def adoptable(pod: PodFacts, version: int) -> bool:
    """Whether a bound pod can continue as its instance: it is not ending, nor of a later version."""
    ended = pod.ending or pod.phase in ENDED_PHASES or pod.deletion_cost == VICTIM_COST
    return not ended and pod.version <= version


def cores_of_instance(pod: PodFacts) -> int:
    """The cores of a pod's instance."""
    return max(1, round(pod.cores))


def cores_in_use(pod: PodFacts) -> int:
    """The cores that a pod's instance uses now: until the node has applied a resize, a serving pod has its former cores."""
    return max(1, round(pod.effective_cores or pod.cores)) if pod.serving else cores_of_instance(pod)


def instance_of(pod: PodFacts, spec: FunctionSpec, now_s: float) -> tuple[Instance, InstanceRequest, Given]:
    """The instance of a bound pod, as if it had been requested now, with its request and its reservation."""
    assert pod.instance is not None
    cores = cores_of_instance(pod)
    request = InstanceRequest(spec, pod.version, cores, pod.node, {})
    began = starting(pod.instance, request, pod.node or "", pod.memory_bytes, now_s)
    instance = replace(began, cores=cores_in_use(pod))
    return instance, request, given_to(spec, cores, pod.node or "")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The context that all functions of a fleet share.

    `deployed` and `pods` read the informers' caches. `adopting` returns whether pods of an earlier process may be used again.
    `left_alone` returns whether another autoscaler scales the function. `caught_up` waits until the informer has this generation
    of a Deployment, with a timeout. `leads` returns whether this process decides; otherwise it only follows the pods.
    `heard` has the time of each node's last answer. `warn` creates an Event on a function's Deployment. `ledger` has the nodes'
    free capacity and the instances' reservations.
    """

    deployed: Callable[[FunctionKey], DeployedFunction | None]
    pods: Callable[[FunctionKey], Iterable[PodFacts]]
    session: aiohttp.ClientSession
    clock: Clock
    adopting: Callable[[], bool]
    left_alone: Callable[[FunctionKey], bool]
    caught_up: Callable[[FunctionKey, int], Awaitable[None]]
    start_timeout_s: float
    leads: Callable[[], bool] = lambda: True
    warn: Callable[[FunctionKey, str, str], None] = lambda *_: None
    ledger: Ledger = field(default_factory=Ledger)
    heard: defaultdict[str, Heard] = field(default_factory=lambda: defaultdict(Heard))


LOOK_AGAIN_S = 5.0

_LOG = logging.getLogger("gnomon.openfaas")


class Workload:
    """The reconciler of one function. `steps` writes for it."""

    def __init__(self, key: FunctionKey, steps: Steps, around: Surroundings) -> None:
        self.key = key
        self.lives: dict[str, Life] = {}
        self._steps, self._around = steps, around
        self._spec: FunctionSpec | None = None
        self._version = 0
        self._going: set[str] = set()
        """The names of pods to remove."""
        self._unseen = Unseen()
        self._look = asyncio.Event()
        self._background = Background()
        self._begin = self._background.begin
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, life: Life) -> None:
        """Add an instance."""
        self.lives[life.instance.id] = life
        if life.request.version >= self._version:
            self._spec, self._version = life.request.spec, life.request.version
        self.look()

    def stop(self, life: Life) -> None:
        """End an instance."""
        life.stop()
        if life.pod is None:
            # As on every platform, the listener is notified from the loop, after this call has returned.
            asyncio.get_running_loop().call_soon(life.end, "stopped")
        self.look()

    def forget(self, life: Life) -> None:
        """Remove an instance that has ended; its pod, if it still exists, will be removed."""
        self.lives.pop(life.instance.id, None)
        self._unseen.forget(life.instance.id)
        if life.pod is not None:
            self._going.add(life.pod.name)
        self.look()

    def look(self) -> None:
        """Trigger reconciliation."""
        self._look.set()

    def tell_again(self, but: Collection[Instance]) -> None:
        """Notify the listener again of ready instances other than these: earlier it may not have known the function."""
        for life in [one for one in self.lives.values() if one.instance not in but]:
            life.tell()

    async def close(self) -> None:
        """End the task."""
        self._task.cancel()
        await asyncio.gather(self._task, self._background.end(), return_exceptions=True)

    def seen(self, pod: PodFacts | None, name: str) -> None:
        """Handle a pod's change; None if it was removed."""
        life = next((one for one in self.lives.values() if one.pod is not None and one.pod.name == name), None)
        if pod is None:
            if life is not None and life.pod is not None:
                reason = "stopped" if life.stopping else life.pod.trouble or "its pod was removed"
                life.pod = None
                life.end(reason)
        elif life is None:
            bound = self.lives.get(pod.instance or "")
            if bound is not None and not bound.gone:
                bound.take(pod)
                self._progress(bound, pod)
        else:
            life.pod = pod
            self._progress(life, pod)
        self.look()

    def _progress(self, life: Life, pod: PodFacts) -> None:
        """Update an instance from its pod's state."""
        state = life.instance.state
        if not self._around.leads():
            life.follow(cores_of_instance(pod), cores_in_use(pod))
        if pod.trouble.startswith(RESIZE):
            self._around.warn(self.key, RESIZE_PENDING, f"{pod.name}: {pod.trouble}")
        if pod.phase in ENDED_PHASES:
            end = life.end if state is not InstanceState.STARTING else partial(self._not_started, life)
            end(pod.trouble or f"its pod has {pod.phase.lower()}")
        elif state is InstanceState.READY and pod.restarts > life.restarts:
            life.end(pod.trouble or "its container was restarted")
        elif pod.ending and life.channel is not None and not life.stopping:
            # Evicted, drained or deleted by a user: batches in flight are answered within the grace period.
            life.channel.drain("its pod was told to end")
        elif not self._around.leads() and pod.deletion_cost == VICTIM_COST:
            if life.channel is not None:
                # The leader removes this pod: it still answers what is in flight, and gets no new batches.
                life.channel.drain("it is not wanted any more")
        elif state is InstanceState.STARTING and life.channel is None and life.fits(pod):
            self._connect(life, pod)
        elif state is InstanceState.READY and life.sized_cores is not None and pod.effective_cores == pod.cores:
            self._resized(life, round(pod.cores))

    def _resized(self, life: Life, cores: int) -> None:
        """Handle an applied resize: set the process's threads, then notify the listener, which sizes batches by them."""
        if life.instance.cores == cores or life.channel is None:
            return
        life.resized(cores)
        if self._around.leads():
            self._begin(self._use(life, life.channel, cores))
        else:
            life.tell()

    async def _use(self, life: Life, channel: HttpChannel, cores: int) -> None:
        await life.use(channel, cores)
        life.tell()

    def _connect(self, life: Life, pod: PodFacts) -> None:
        assert pod.ip is not None
        address = http_url(pod.ip, PORT)

        async def connect() -> None:
            try:
                token = await self._steps.token(self._around.deployed(self.key))
            except GnomonError as error:
                self._not_started(life, f"could not be started: {error}")
                return
            if life.living and life.channel is None:
                settings = life.request.spec.settings
                channel = HttpChannel(
                    self._around.session,
                    address,
                    token,
                    settings.deadline_s,
                    life.end,
                    well=lambda: life.healthy,
                    node=self._around.heard[pod.node or ""],
                    concurrency=settings.expected_concurrency,
                )
                if self._around.leads() and life.untold:
                    # The process started before its pod was resized, or an earlier leader has resized it.
                    await life.use(channel, life.instance.cores)
                life.ready(channel, pod.restarts)

        self._begin(connect())

    def _tell_untold(self) -> None:
        """Set the threads of processes that may not know their pods' cores: after another leader, or a reverted resize."""
        for life in self.lives.values():
            if life.untold and life.channel is not None and self._around.leads():
                self._begin(life.use(life.channel, life.instance.cores))

    # The task

    async def _run(self) -> None:
        while True:
            self._look.clear()
            self._tell_untold()
            failed = True
            try:
                steps = self._plan()
                failed = bool(steps) and not await self._take(steps)
            except GnomonError as error:
                _LOG.warning("%s: %s", self.key, error)
            except Exception:  # noqa: BLE001 - whatever it is, the next look may do better
                # A bug in one plan must not end the reconciliation of the function.
                _LOG.exception("%s could not be looked after", self.key)
            starting = any(life.instance.state is not InstanceState.READY for life in self.lives.values())
            # At the end of the adopting period, pods of an earlier process that no instance uses must be removed.
            waits = self._around.leads() and (failed or starting or self._going or self._around.adopting())
            with contextlib.suppress(TimeoutError):
                # Not wait_for: it loses a cancellation that arrives together with the awaited event.
                async with asyncio.timeout(LOOK_AGAIN_S if waits else None):
                    await self._look.wait()
            self._too_late()

    def _plan(self) -> Sequence[Step]:
        if not self._around.leads() or self._around.left_alone(self.key):
            return ()
        pods = tuple(self._around.pods(self.key))
        owners = {pod.instance: pod.name for pod in pods if pod.instance is not None and not pod.ending}
        living = [life for life in self.lives.values() if life.living]
        kept = {owners[life.instance.id]: life.sized_cores for life in living if life.instance.id in owners}
        stopping = {life.instance.id for life in self.lives.values() if life.stopping}
        going = self._going = {pod.name for pod in pods if pod.name in self._going or pod.instance in stopping}
        waiting = tuple(
            Waiting(life.instance.id, life.instance.node, self._unseen.claimed.get(life.instance.id))
            for life in living
            if life.instance.id not in owners and life.pod is None
        )
        wanted = Wanted(self._version, waiting, kept, frozenset(going), self._around.adopting(), self._unseen.lowered)
        return plan(self._around.deployed(self.key), pods, wanted)

    async def _take(self, steps: Sequence[Step]) -> bool:
        """Write these steps; whether all succeeded."""
        spec, version = self._spec, self._version
        deployed = self._around.deployed(self.key)
        furnished = True
        if not all(isinstance(step, Scale) for step in steps):
            # Requests wait for a scale-up, so that does not wait for the dependents; a Claim, which comes later, needs them.
            furnished = await self._furnished(spec, deployed)
            steps = [step for step in steps if furnished or not isinstance(step, Claim)]
        taken = await asyncio.gather(*(self._step(step, spec, version, deployed) for step in steps), return_exceptions=True)
        for step, error in zip(steps, taken, strict=True):
            if isinstance(error, int):
                # The pod informer may be ahead of the Deployment's: its new pods would be taken for pods of an older version.
                await self._around.caught_up(self.key, error)
            if not isinstance(error, BaseException):
                continue
            _LOG.warning("%s: %s: %s", self.key, type(step).__name__, error)
            if not isinstance(error, GnomonError):
                raise error
            if isinstance(step, Deploy):
                self._not_deployed(error)
            elif isinstance(step, Resize) and lasts(error):
                self._not_resized(step, error)
        return furnished and not any(isinstance(error, BaseException) for error in taken)

    async def _furnished(self, spec: FunctionSpec | None, deployed: DeployedFunction | None) -> bool:
        """Create the Deployment's dependents; whether they exist."""
        try:
            await self._steps.furnish_once(spec, deployed)
        except GnomonError as error:
            _LOG.warning("%s: %s", self.key, error)
            self._not_deployed(error)
            return False
        return True

    def _not_deployed(self, error: GnomonError) -> None:
        """Handle a refused Deployment or dependent: if the error is permanent, end the instances that have no pod."""
        if lasts(error):
            for life in [one for one in self.lives.values() if one.pod is None]:
                self._not_started(life, f"could not be started: {error}")

    def _not_resized(self, step: Resize, error: GnomonError) -> None:
        """Handle a permanently refused resize: the instance keeps the cores that its pod has."""
        life, cores = self.lives.get(step.pod.instance or ""), cores_of_instance(step.pod)
        if life is None or life.pod is None:
            return
        self._around.warn(self.key, RESIZE_PENDING, f"{life.pod.name}: {error}")
        life.keep(cores, step.cores, error, self._around.clock.now_s())
        if life.sized_cores == cores:
            self._around.ledger.resize(life.instance.id, cores)
        if life.channel is not None and step.cores < cores:
            # Its process was already set to fewer threads: revert that.
            self._begin(life.use(life.channel, cores))
        self._progress(life, life.pod)

    async def _step(self, step: Step, spec: FunctionSpec | None, version: int, deployed: DeployedFunction | None) -> int | None:
        if isinstance(step, Resize) and step.cores < step.pod.cores:
            # Set fewer threads before fewer cores: with too many threads, CPU throttling would stop all of them.
            life = self.lives.get(step.pod.instance or "")
            if life is not None and life.channel is not None:
                await life.use(life.channel, step.cores)
        self._unseen.sent(step)
        generation = await self._steps.take(step, spec, version, deployed)
        self._unseen.written(step)
        return generation

    def _not_started(self, life: Life, reason: str) -> None:
        """End an instance that failed to start, with an Event."""
        self._around.warn(self.key, START_FAILED, f"Instance {life.instance.id}: {reason}")
        life.end(reason)

    def _too_late(self) -> None:
        """End the instances that have not become ready within the start timeout."""
        now_s, deployed = self._around.clock.now_s(), self._around.deployed(self.key)
        shortage = "" if deployed is None else deployed.failure
        starting = (one for one in self.lives.values() if one.instance.state is InstanceState.STARTING)
        for life in list(starting) if self._around.leads() else ():
            if now_s - life.instance.started_s > self._around.start_timeout_s:
                trouble = life.pod.trouble if life.pod is not None else shortage
                self._not_started(
                    life, f"was not ready within {self._around.start_timeout_s:g} s{f': {trouble}' if trouble else ''}"
                )
