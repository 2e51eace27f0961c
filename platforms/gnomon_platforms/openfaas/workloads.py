"""One function in the cluster: who waits for a pod, who has one, whose is to go.

Whatever happens, an instance that is asked for or destroyed, a pod that has changed, a step that failed, only lets the function
be looked at again: `planning` says what to write, `steps` writes it. One task looks after a function, so that its steps never
overlap with those of the next plan. Nothing is polled, but a pod that does not get on, and a step that was refused, are looked
at again after a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from functools import partial

from gnomon_core.addresses import http_url
from gnomon_core.background import Background
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_platforms.kubernetes.channel import HttpChannel
from gnomon_platforms.kubernetes.errors import lasts
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.names import PORT
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES, RESIZE, PodFacts
from gnomon_platforms.kubernetes.objects.removal import VICTIM_COST
from gnomon_platforms.openfaas.adopting import cores_in_use, cores_of_instance
from gnomon_platforms.openfaas.events import RESIZE_PENDING, START_FAILED
from gnomon_platforms.openfaas.lives import Life
from gnomon_platforms.openfaas.planning import Claim, Deploy, Resize, Scale, Step, Waiting, Wanted, plan
from gnomon_platforms.openfaas.steps import Steps
from gnomon_platforms.openfaas.surroundings import Surroundings
from gnomon_platforms.openfaas.unseen import Unseen

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
            life.channel.retire("its pod was told to end")
        elif not self._around.leads() and pod.deletion_cost == VICTIM_COST:
            if life.channel is not None:
                # Who leads has let it go, and removes it: its image answers whatever comes until nothing does any more.
                life.channel.retire("it is not wanted any more")
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
