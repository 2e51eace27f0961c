"""Reconciliation of one function in the cluster: its instances, and the pods that they wait for, have, or release.

Every event (an instance is requested or destroyed, a pod changes, a step fails) only triggers reconciliation: `planning` computes
the steps, `steps` writes them.

`InstanceRecord` is the record of one instance:

    requested ▶ bound to a pod ▶ the pod is healthy and has its cores ▶ ready ▶ destroyed, or its pod has ended ▶ gone
        ▲             └ the pod has gone: another takes its place ┐
        └─────────────────────────────────────────────────────────┘

A pod that waits for a node is no failed start: its instance starts for as long as the scaling policy wants it. `adoptable` and
`adopted` decide which pods of an earlier process continue as instances.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any

from gnomon_core.addresses import http_url
from gnomon_core.background import Background
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey, FunctionSpec
from gnomon_core.interfaces import InstanceRequest, PlatformListener
from gnomon_platforms.common import RemoteInstance, claimed_cores, starting
from gnomon_platforms.kubernetes.channel import HttpChannel
from gnomon_platforms.kubernetes.client import is_permanent
from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.names import PORT
from gnomon_platforms.kubernetes.objects.pods import RESIZE, PodFacts
from gnomon_platforms.kubernetes.reconciler import Plan, Reconciler
from gnomon_platforms.kubernetes.resources import REFUSED_S, RefusedSize
from gnomon_platforms.openfaas.observed import NO_CAPACITY, RESIZE_PENDING, START_FAILED, ObservedCluster
from gnomon_platforms.openfaas.planning import (
    VICTIM_COST,
    Bind,
    Deploy,
    Desired,
    Furnish,
    Kept,
    Resize,
    Step,
    Waiting,
    plan,
)
from gnomon_platforms.openfaas.steps import Steps

REPLACED_S = 10.0
"""Seconds for which the replicas stay as they are after an instance has failed: the next instance takes the pod that its
ReplicaSet creates. Scaled down at once, that pod would be removed and created again."""
RECHECK_S = 5.0
"""Seconds between checks of time limits while instances start or pods are to be removed."""

_LOG = logging.getLogger("gnomon.openfaas")


class InstanceRecord(RemoteInstance[HttpChannel]):
    """The record of an instance: its request and its pod.

    With `threads_known` False another process leads or has led: it may have ended between resizing the pod and setting the number
    of threads of the pod's process.
    """

    def __init__(
        self,
        instance: Instance,
        request: InstanceRequest,
        listener: PlatformListener,
        ended: Callable[[InstanceRecord], None],
        *,
        threads_known: bool = True,
    ) -> None:
        super().__init__(instance, listener, ended)
        self.request = request
        self._threads = request.spec.settings.cores if threads_known else None
        """The threads of its process, initially the deployment's cores; None if unknown."""
        self.pod: PodFacts | None = None
        """The pod as observed last; None while there is none."""
        self.bound: str | None = None
        """The name of the pod that it was bound to; the informer may not have observed that yet."""
        self.placed_s: float | None = None
        """The time at which its pod was first observed on a node."""
        self.restarts = 0
        """The container's restart count when the instance became ready: with another restart its batches are lost."""
        self.served = False
        """Whether the instance has been ready."""
        self.stopping = False
        """Whether the instance's end was requested."""
        self._refused: RefusedSize | None = None

    @property
    def sized_cores(self) -> int | None:
        """The cores that its pod should have; None if the deployment's own requests or limits set them."""
        cores = self.request.cores
        return cores if claimed_cores(self.request.spec, cores) != claimed_cores(self.request.spec, cores + 1) else None

    @property
    def threads_outdated(self) -> bool:
        """True if its process may use other threads than its pod has cores, and no resize is pending."""
        cores, pod = self.instance.cores, self.pod
        settled = pod is not None and pod.cores == cores and pod.effective_cores in (0, cores)
        return settled and self.sized_cores == cores != self._threads

    @property
    def living(self) -> bool:
        """True if the instance exists or starts, and is not ending."""
        return not self.gone and not self.stopping

    @property
    def starting(self) -> bool:
        return self.instance.state is InstanceState.STARTING

    @property
    def healthy(self) -> bool:
        """True if its pod is healthy, by the pod's status."""
        return self.pod is not None and self.pod.healthy

    def observe(self, pod: PodFacts, now_s: float) -> None:
        """Set its pod, or the pod's newer state."""
        self.pod = pod
        if pod.node is not None and self.placed_s is None:
            self.placed_s = now_s
            self.instance = replace(self.instance, node=pod.node)

    def take(self, pod: PodFacts) -> None:
        """Record that it is being bound to this pod. The threads of a process that another instance had are unknown."""
        self.bound = pod.name
        if pod.instance not in (None, self.instance.id):
            self._threads = None

    def lose_pod(self) -> None:
        """Wait for another pod. It has not been ready yet, so nothing is lost."""
        self.pod = self.bound = self.placed_s = None
        self.instance = replace(self.instance, node="")

    def fits(self, pod: PodFacts) -> bool:
        """True if its pod can take the first batch: it is healthy, and has the cores that it was resized to.

        It need not wait for a resize that the node has deferred or refused: it serves with the cores that it has.
        """
        sized = self.sized_cores in (None, pod.cores)
        applied = pod.effective_cores in (0, pod.cores, self.instance.cores) or pod.trouble.startswith(RESIZE)
        return pod.state is InstanceState.READY and sized and applied

    def ready(self, channel: HttpChannel, restarts: int = 0) -> None:
        """Mark the instance as ready: its pod takes batches."""
        self.restarts, self.served = restarts, True
        self.instance = replace(self.instance, concurrency=self.request.spec.settings.expected_concurrency)
        super().ready(channel)

    def report(self) -> None:
        """Report the instance's present state to the listener, if it takes batches."""
        if self.channel is not None and self.instance.state is InstanceState.READY:
            self._listener.instance_ready(self.instance, self.channel)

    def set_threads(self, channel: HttpChannel, cores: int) -> Coroutine[Any, Any, None]:
        """Set the number of threads of its process; the coroutine that sends it."""
        self._threads = cores
        return channel.resize(cores)

    def request_cores(self, cores: int) -> None:
        """Request these cores for its pod; until its node has resized the pod, they are `coming_cores`."""
        self.request = replace(self.request, cores=cores)
        coming = None if self.sized_cores in (None, self.instance.cores) else cores
        if coming != self.instance.coming_cores:
            self.instance = replace(self.instance, coming_cores=coming)

    def follow(self, cores: int, used: int) -> None:
        """Take over the cores that were requested for its pod, of which `used` are in use by now."""
        if self.starting:
            self.instance = replace(self.instance, cores=used)
        self.request_cores(cores)

    def keep_cores(self, cores: int, refused: int, why: GnomonError, now_s: float) -> None:
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
        self.request_cores(self.request.cores)


def adoptable(pod: PodFacts, version: int) -> bool:
    """True if a bound pod can continue as its instance: it is not ending, nor of a later version."""
    return not (pod.ending or pod.ended or pod.deletion_cost == VICTIM_COST) and pod.version <= version


def adopted(pod: PodFacts, spec: FunctionSpec, now_s: float) -> tuple[Instance, InstanceRequest]:
    """The instance of a bound pod, as if it had been requested now, with its request."""
    assert pod.instance is not None
    request = InstanceRequest(spec, pod.version, whole_cores(pod.cores), pod.node, {})
    began = starting(pod.instance, request, pod.node or "", pod.memory_bytes, now_s)
    return replace(began, cores=cores_in_use(pod)), request


def whole_cores(cores: float) -> int:
    """The cores of an instance whose pod has these."""
    return max(1, round(cores))


def cores_in_use(pod: PodFacts) -> int:
    """The cores that a pod's instance uses now: until the node has applied a resize, a ready pod has its former cores."""
    return whole_cores(pod.effective_cores or pod.cores) if pod.ready else whole_cores(pod.cores)


class Workload(Reconciler[Step]):
    """The reconciler of one function. `steps` writes for it."""

    def __init__(self, key: FunctionKey, steps: Steps, cluster: ObservedCluster) -> None:
        super().__init__(str(key), cluster.clock, cluster.rng, _LOG)
        self.key = key
        self.records: dict[str, InstanceRecord] = {}
        """The function's instances, by id."""
        self.removed = False
        """Whether the function's Deployment was there and is not any more."""
        self._steps, self._cluster = steps, cluster
        self._spec: FunctionSpec | None = None
        self._version = 0
        self._released: set[str] = set()
        """The names of the pods of instances that have ended."""
        self._replaced_until_s: list[float] = []
        """The times until which the replicas of failed instances are kept, one for each."""
        self._without_room_since_s: float | None = None
        self._background = Background()

    def add(self, record: InstanceRecord) -> None:
        """Add an instance."""
        self.records[record.instance.id] = record
        if record.request.version >= self._version:
            self._spec, self._version = record.request.spec, record.request.version
        if self._replaced_until_s:
            self._replaced_until_s.pop(0)
        self.trigger()

    def stop(self, record: InstanceRecord) -> None:
        """End an instance."""
        record.stop()
        if record.pod is None:
            # As on every platform, the listener is notified from the loop, after this call has returned.
            asyncio.get_running_loop().call_soon(record.end, "stopped")
        self.trigger()

    def forget(self, record: InstanceRecord) -> None:
        """Remove an instance that has ended; its pod, if it still exists, will be removed."""
        self.records.pop(record.instance.id, None)
        if record.pod is not None:
            self._released.add(record.pod.name)
        if record.served and not record.stopping and record.instance.version == self._version:
            self._replaced_until_s.append(self._clock.now_s() + REPLACED_S)
        self.trigger()

    def report_again(self, but: Collection[Instance]) -> None:
        """Report ready instances other than these again: earlier the listener may not have known the function."""
        for record in [record for record in self.records.values() if record.instance not in but]:
            record.report()

    async def close(self) -> None:
        """End the tasks."""
        await super().close()
        await self._background.end()

    # What is observed of pods

    def pod_changed(self, pod: PodFacts | None, name: str) -> None:
        """Handle a pod's change; None if it was removed."""
        record = next((record for record in self.records.values() if record.pod is not None and record.pod.name == name), None)
        if record is not None and pod is not None and pod.instance != record.instance.id:
            record.pod = None
            self._pod_left(record, "its pod was bound to another instance")
            record = None
        if pod is None:
            if record is not None and record.pod is not None:
                reason, record.pod = record.pod.trouble or "its pod was removed", None
                self._pod_left(record, reason)
        else:
            if record is None:
                found = self.records.get(pod.instance or "")
                record = found if found is not None and found.pod is None and not (pod.ending or pod.ended) else None
            if record is not None and not record.gone:
                record.observe(pod, self._clock.now_s())
                self._progress(record, pod)
        self.trigger()

    def _pod_left(self, record: InstanceRecord, reason: str) -> None:
        """Handle the end of a pod: its instance waits for another one if it has not been ready, and has gone otherwise."""
        if record.starting and self._cluster.leads:
            record.lose_pod()
        else:
            record.end("stopped" if record.stopping else reason)

    def _progress(self, record: InstanceRecord, pod: PodFacts) -> None:
        """Update an instance from its pod's state."""
        if not self._cluster.leads:
            record.follow(whole_cores(pod.cores), cores_in_use(pod))
        self._warn_of_trouble(record, pod)
        if record.starting and (pod.ended or pod.ending):
            # An eviction, or a node that had no room after all: the ReplicaSet creates another pod.
            self._pod_left(record, pod.trouble or "its pod is terminating")
        elif pod.ended:
            record.end("stopped" if record.stopping else pod.trouble or f"its pod has {pod.phase.lower()}")
        elif record.starting and record.channel is None and record.fits(pod):
            self._connect(record, pod)
        elif record.channel is not None:
            self._progress_serving(record, record.channel, pod)

    def _progress_serving(self, record: InstanceRecord, channel: HttpChannel, pod: PodFacts) -> None:
        """Update an instance that takes batches, or has taken some, from its pod's state."""
        if pod.restarts > record.restarts:
            record.end(pod.trouble or "its container was restarted")
        elif pod.ending and not record.stopping:
            # Evicted, drained or deleted by a user: batches in flight are answered within the grace period.
            channel.drain("its pod is terminating")
        elif pod.deletion_cost == VICTIM_COST and not self._cluster.leads:
            # The leader removes this pod: it still answers what is in flight, and gets no new batches.
            channel.drain("the leader removes its pod")
        elif record.sized_cores is not None and pod.effective_cores == pod.cores and not record.stopping:
            self._resized(record, round(pod.cores))

    def _warn_of_trouble(self, record: InstanceRecord, pod: PodFacts) -> None:
        if pod.trouble.startswith(RESIZE):
            self._cluster.warn(self.key, RESIZE_PENDING, f"{pod.name}: {pod.trouble}")
        elif pod.unschedulable:
            self._cluster.warn(self.key, NO_CAPACITY, f"{pod.name}: {pod.trouble}")
        elif pod.ended and record.starting:
            self._cluster.warn(self.key, START_FAILED, f"{pod.name}: {pod.trouble}")

    def _resized(self, record: InstanceRecord, cores: int) -> None:
        """Handle an applied resize: set the process's threads, then notify the listener, which sizes batches by them."""
        if record.instance.cores == cores or record.channel is None:
            return
        record.resized(cores)
        if self._cluster.leads:
            self._background.begin(self._use_cores(record, record.channel, cores))
        else:
            record.report()

    async def _use_cores(self, record: InstanceRecord, channel: HttpChannel, cores: int) -> None:
        await record.set_threads(channel, cores)
        record.report()

    def _connect(self, record: InstanceRecord, pod: PodFacts) -> None:
        assert pod.ip is not None
        address = http_url(pod.ip, PORT)
        if pod.trouble.startswith(RESIZE):
            record.follow(whole_cores(pod.cores), cores_in_use(pod))

        async def connect() -> None:
            try:
                token = await self._steps.token(self._cluster.deployed(self.key))
            except GnomonError as error:
                self._not_started(record, f"could not be started: {error}")
                return
            # Meanwhile it may have been stopped, or its pod may have gone.
            if record.living and record.channel is None and record.pod is not None and record.pod.uid == pod.uid:
                settings = record.request.spec.settings
                channel = HttpChannel(
                    self._cluster.session,
                    address,
                    token,
                    settings.deadline_s,
                    record.end,
                    is_healthy=lambda: record.healthy,
                    node=self._cluster.node_contact(pod.node or ""),
                    concurrency=settings.expected_concurrency,
                )
                if self._cluster.leads and record.threads_outdated:
                    # The process started before its pod was resized, or an earlier leader has resized it.
                    await record.set_threads(channel, record.instance.cores)
                record.ready(channel, pod.restarts)

        self._background.begin(connect())

    # What is to be done

    def plan(self) -> Plan[Step]:
        """The next steps; none while another process decides."""
        if not self._cluster.leads:
            return Plan()
        self._check_threads()
        self._check_start_timeouts()
        if self._cluster.left_alone(self.key):
            return Plan()
        deployed, pods = self._cluster.deployed(self.key), tuple(self._cluster.pods_of(self.key))
        desired = self._desired(deployed, pods)
        steps = plan(deployed, pods, desired)
        starting_some = any(record.starting for record in self.records.values())
        # When the time to adopt is over, pods of an earlier process that no instance uses must be removed.
        limited = starting_some or desired.released or desired.adopting or desired.vacancies
        return Plan(steps, RECHECK_S if limited else None)

    def _desired(self, deployed: DeployedFunction | None, pods: Collection[PodFacts]) -> Desired:
        now_s = self._clock.now_s()
        bound = {pod.instance: pod.name for pod in pods if pod.instance and not (pod.ending or pod.ended)}
        kept: dict[str, Kept] = {}
        waiting: list[Waiting] = []
        leaving = 0
        for record in self.records.values():
            name = bound.get(record.instance.id) if record.pod is None else record.pod.name
            if not record.living:
                continue
            if record.pod is not None and record.pod.ending:
                # Its successor is created already.
                leaving += record.instance.version == self._version
            elif name is not None:
                kept[name] = Kept(record.sized_cores, serving=record.instance.state is InstanceState.READY)
            elif record.pod is None:
                waiting.append(Waiting(record.instance.id, record.bound))
        stopping = {record.instance.id for record in self.records.values() if record.stopping}
        self._released = {pod.name for pod in pods if pod.name in self._released or pod.instance in stopping}
        self._replaced_until_s = [until_s for until_s in self._replaced_until_s if until_s > now_s]
        return Desired(
            version=self._version,
            waiting=tuple(waiting),
            kept=kept,
            released=frozenset(self._released),
            vacancies=leaving + len(self._replaced_until_s),
            furnished=deployed is None or deployed.removed or not self.records or self._steps.furnished(deployed),
            adopting=self._cluster.adopting_s() > 0,
            blocked=self._blocked(deployed, pods, now_s),
        )

    def _blocked(self, deployed: DeployedFunction | None, pods: Collection[PodFacts], now_s: float) -> bool:
        """True if pods of the present template have been without room, or could not be created, for `room_timeout_s`."""
        stuck = deployed is not None and (
            bool(deployed.failure) or any(pod.unschedulable and pod.version == deployed.template_version for pod in pods)
        )
        if not stuck:
            self._without_room_since_s = None
            return False
        if self._without_room_since_s is None:
            self._without_room_since_s = now_s
        return now_s - self._without_room_since_s >= self._cluster.options.room_timeout_s

    async def execute(self, step: Step) -> None:
        """Handle a failed step. Permanent errors end the instances that cannot start, or the resize."""
        try:
            await self._write(step)
        except GnomonError as error:
            if is_permanent(error):
                # Not `step_failed`, which is not called where the namespace is missing: that looks like an outdated plan.
                self._refused(step, error)
            raise
        if isinstance(step, Furnish):
            self.trigger()

    async def _write(self, step: Step) -> None:
        record = self._record_of(step)
        if isinstance(step, Bind) and record is not None:
            # Before it is written: it may be executed even if there is no answer.
            record.take(step.pod)
        elif isinstance(step, Resize) and step.cores < step.pod.cores and record is not None and record.channel is not None:
            # Set fewer threads before fewer cores: with too many threads, CPU throttling would stop all of them.
            await record.set_threads(record.channel, step.cores)
        generation = await self._steps.take(step, self._spec, self._version, self._cluster.deployed(self.key))
        if generation is not None:
            # The pod informer may be ahead of the Deployment's: its new pods would be taken for pods of an older version.
            await self._cluster.caught_up(self.key, generation)

    def _refused(self, step: Step, error: GnomonError) -> None:
        if isinstance(step, Deploy | Furnish):
            for record in [record for record in self.records.values() if record.starting]:
                self._not_started(record, f"could not be started: {error}")
        elif isinstance(step, Resize):
            self._not_resized(step, error)

    def _record_of(self, step: Step) -> InstanceRecord | None:
        match step:
            case Bind():
                return self.records.get(step.instance)
            case Resize():
                return self.records.get(step.pod.instance or "")
        return None

    def _not_resized(self, step: Resize, error: GnomonError) -> None:
        """Handle a permanently refused resize: the instance keeps the cores that its pod has."""
        record, cores = self._record_of(step), whole_cores(step.pod.cores)
        if record is None or record.pod is None:
            return
        self._cluster.warn(self.key, RESIZE_PENDING, f"{record.pod.name}: {error}")
        record.keep_cores(cores, step.cores, error, self._clock.now_s())
        if record.channel is not None and step.cores < cores:
            # Its process was already set to fewer threads: revert that.
            self._background.begin(record.set_threads(record.channel, cores))
        self._progress(record, record.pod)

    def _not_started(self, record: InstanceRecord, reason: str) -> None:
        """End an instance that failed to start, with an Event."""
        self._cluster.warn(self.key, START_FAILED, f"Instance {record.instance.id}: {reason}")
        record.end(reason)

    def _check_threads(self) -> None:
        """Set the threads of processes that may not know their pods' cores: after another leader, or a reverted resize."""
        for record in self.records.values():
            if record.threads_outdated and record.channel is not None:
                self._background.begin(record.set_threads(record.channel, record.instance.cores))

    def _check_start_timeouts(self) -> None:
        """End the instances whose pods have a node, and have not become ready within the start timeout."""
        timeout_s, now_s = self._cluster.options.start_timeout_s, self._clock.now_s()
        for record in [record for record in self.records.values() if record.starting and record.placed_s is not None]:
            assert record.placed_s is not None
            if now_s - record.placed_s > timeout_s:
                trouble = "" if record.pod is None else record.pod.trouble
                self._not_started(record, f"was not ready within {timeout_s:g} s{f': {trouble}' if trouble else ''}")
