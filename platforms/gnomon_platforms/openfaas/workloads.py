"""One function in the cluster: who waits for a pod, who has one, whose is to go.

Whatever happens, an instance that is asked for or destroyed, a pod that has changed, a step that failed, only lets the function
be looked at again: `planning` says what to write, `steps` writes it. One task looks after a function, so that its steps never
overlap with those of the next plan. Nothing is polled, but a pod that does not get on, and a step that was refused, are looked
at again after a while.

One instance from when it was asked for to its end.

asked for ▶ a pod is claimed for it ▶ the pod is healthy and has its cores ▶ ready ▶ destroyed, or its pod has ended ▶ gone

Instances that another process has begun: which pods go on as instances here, and as what.

What a function in the cluster lives among: what is seen of it, what is shared with others, and who decides.
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
from gnomon_platforms.common import RemoteLife, claimed_cores, starting
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


def may_be_found(pod: PodFacts, version: int, *, placed: bool) -> bool:
    """Whether a pod can go on as the instance that it was given to, up to this version; `placed` asks for its node as well."""
    return adoptable(pod, version) and not (placed and pod.node is None)


def adoptable(pod: PodFacts, version: int) -> bool:
    """Whether a pod that was given to an instance can go on as that: it was not on its way out, and is not of a later version."""
    ended = pod.ending or pod.phase in ENDED_PHASES or pod.deletion_cost == VICTIM_COST
    return not ended and pod.version <= version


def cores_of_instance(pod: PodFacts) -> int:
    """How many cores the instance of a pod has."""
    return max(1, round(pod.cores))


def cores_in_use(pod: PodFacts) -> int:
    """How many of them its instance uses by now: a pod that serves does so with what it had, until its node has come to it."""
    return max(1, round(pod.effective_cores or pod.cores)) if pod.serving else cores_of_instance(pod)


def instance_of(pod: PodFacts, spec: FunctionSpec, now_s: float) -> tuple[Instance, InstanceRequest, Given]:
    """The instance of a pod that was given to one, as if it had been asked for now, and the room that it has."""
    assert pod.instance is not None
    cores = cores_of_instance(pod)
    request = InstanceRequest(spec, pod.version, cores, pod.node, {})
    began = starting(pod.instance, request, pod.node or "", pod.memory_bytes, now_s)
    instance = replace(began, cores=cores_in_use(pod))
    return instance, request, given_to(spec, cores, pod.node or "")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Of all functions of a fleet.

    `deployed` and `pods` are what informers hold of it. `adopting` says whether pods of an earlier process may be used again.
    `left_alone` says whether its pods are somebody else's to count. `caught_up` returns when informers hold this generation of a
    Deployment, or after a while. `leads` says whether this process decides; while another one does, its pods are only followed.
    `heard` is when something was heard of each node. `warn` puts a reason and a text where operators look at a function. `ledger`
    is what instances have of nodes.
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
    """One function. `steps` writes for it."""

    def __init__(self, key: FunctionKey, steps: Steps, around: Surroundings) -> None:
        self.key = key
        self.lives: dict[str, Life] = {}
        self._steps, self._around = steps, around
        self._spec: FunctionSpec | None = None
        self._version = 0
        self._going: set[str] = set()
        """Pods that are to go, by name."""
        self._unseen = Unseen()
        self._look = asyncio.Event()
        self._background = Background()
        self._begin = self._background.begin
        self._task = asyncio.get_running_loop().create_task(self._run())

    def add(self, life: Life) -> None:
        """An instance is wanted."""
        self.lives[life.instance.id] = life
        if life.request.version >= self._version:
            self._spec, self._version = life.request.spec, life.request.version
        self.look()

    def stop(self, life: Life) -> None:
        """An instance is to end."""
        life.stop()
        if life.pod is None:
            # As everywhere else it is told from the loop, after this has returned.
            asyncio.get_running_loop().call_soon(life.end, "stopped")
        self.look()

    def forget(self, life: Life) -> None:
        """An instance has ended; its pod, if there still is one, is to go."""
        self.lives.pop(life.instance.id, None)
        self._unseen.forget(life.instance.id)
        if life.pod is not None:
            self._going.add(life.pod.name)
        self.look()

    def look(self) -> None:
        """Something has changed."""
        self._look.set()

    def tell_again(self, but: Collection[Instance]) -> None:
        """Tell the listener of those that are ready once more, but for these: it may not have known the function then."""
        for life in [one for one in self.lives.values() if one.instance not in but]:
            life.tell()

    async def close(self) -> None:
        """Look no longer."""
        self._task.cancel()
        await asyncio.gather(self._task, self._background.end(), return_exceptions=True)

    def seen(self, pod: PodFacts | None, name: str) -> None:
        """A pod has changed; None for one that is there no more."""
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
        """What has become of an instance, by its pod."""
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
            # Evicted, drained or removed by hand: what it holds is answered within its grace.
            life.channel.drain("its pod was told to end")
        elif not self._around.leads() and pod.deletion_cost == VICTIM_COST:
            if life.channel is not None:
                # Who leads has let it go, and removes it: its image answers whatever comes until nothing does any more.
                life.channel.drain("it is not wanted any more")
        elif state is InstanceState.STARTING and life.channel is None and life.fits(pod):
            self._connect(life, pod)
        elif state is InstanceState.READY and life.sized_cores is not None and pod.effective_cores == pod.cores:
            self._resized(life, round(pod.cores))

    def _resized(self, life: Life, cores: int) -> None:
        """Its pod has these cores now: its process is told to use them, and then whoever sends it batches that it does."""
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
                    # Its process was born before it got the cores of its own, or an earlier leader gave it these.
                    await life.use(channel, life.instance.cores)
                life.ready(channel, pod.restarts)

        self._begin(connect())

    def _tell_untold(self) -> None:
        """Tell processes what their pods have, of whom an earlier leader may not have come to it, or we have taken back fewer."""
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
                # A fault of ours in one plan must not leave the function to itself.
                _LOG.exception("%s could not be looked after", self.key)
            starting = any(life.instance.state is not InstanceState.READY for life in self.lives.values())
            # When pods of an earlier process may not be given out any more, those that are left are to go.
            waits = self._around.leads() and (failed or starting or self._going or self._around.adopting())
            with contextlib.suppress(TimeoutError):
                # Not wait_for: it forgets a cancellation that comes together with what it waits for.
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
        """Write these steps; whether all of them could be."""
        spec, version = self._spec, self._version
        deployed = self._around.deployed(self.key)
        furnished = True
        if not all(isinstance(step, Scale) for step in steps):
            # Requests wait for a number to be raised. What pods need must be there when one is given out, which comes after that.
            furnished = await self._furnished(spec, deployed)
            steps = [step for step in steps if furnished or not isinstance(step, Claim)]
        taken = await asyncio.gather(*(self._step(step, spec, version, deployed) for step in steps), return_exceptions=True)
        for step, error in zip(steps, taken, strict=True):
            if isinstance(error, int):
                # Its pods are there before it is seen itself, and would be taken for those of an older version.
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
        """Make what pods need beside the Deployment; whether it is there."""
        try:
            await self._steps.furnish_once(spec, deployed)
        except GnomonError as error:
            _LOG.warning("%s: %s", self.key, error)
            self._not_deployed(error)
            return False
        return True

    def _not_deployed(self, error: GnomonError) -> None:
        """What a function needs was refused. Where it will be again, who asked for instances is told so."""
        if lasts(error):
            for life in [one for one in self.lives.values() if one.pod is None]:
                self._not_started(life, f"could not be started: {error}")

    def _not_resized(self, step: Resize, error: GnomonError) -> None:
        """A pod was refused other cores, and will be again: its instance goes on with those that the pod has."""
        life, cores = self.lives.get(step.pod.instance or ""), cores_of_instance(step.pod)
        if life is None or life.pod is None:
            return
        self._around.warn(self.key, RESIZE_PENDING, f"{life.pod.name}: {error}")
        life.keep(cores, step.cores, error, self._around.clock.now_s())
        if life.sized_cores == cores:
            self._around.ledger.resize(life.instance.id, cores)
        if life.channel is not None and step.cores < cores:
            # It has been told of fewer already.
            self._begin(life.use(life.channel, cores))
        self._progress(life, life.pod)

    async def _step(self, step: Step, spec: FunctionSpec | None, version: int, deployed: DeployedFunction | None) -> int | None:
        if isinstance(step, Resize) and step.cores < step.pod.cores:
            # Fewer threads come before fewer cores: those that are too many would be throttled all together.
            life = self.lives.get(step.pod.instance or "")
            if life is not None and life.channel is not None:
                await life.use(life.channel, step.cores)
        self._unseen.sent(step)
        generation = await self._steps.take(step, spec, version, deployed)
        self._unseen.written(step)
        return generation

    def _not_started(self, life: Life, reason: str) -> None:
        """An instance never became ready, and will not."""
        self._around.warn(self.key, START_FAILED, f"Instance {life.instance.id}: {reason}")
        life.end(reason)

    def _too_late(self) -> None:
        """End what has not become ready in time."""
        now_s, deployed = self._around.clock.now_s(), self._around.deployed(self.key)
        shortage = "" if deployed is None else deployed.failure
        starting = (one for one in self.lives.values() if one.instance.state is InstanceState.STARTING)
        for life in list(starting) if self._around.leads() else ():
            if now_s - life.instance.started_s > self._around.start_timeout_s:
                trouble = life.pod.trouble if life.pod is not None else shortage
                self._not_started(
                    life, f"was not ready within {self._around.start_timeout_s:g} s{f': {trouble}' if trouble else ''}"
                )
