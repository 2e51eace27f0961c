"""The node's state machine: events in, effects out. No socket, no clock, no process.

Events are an instance that the supervisor has found or lost, a message of an instance, a request of the platform, and time. A
message of an instance concerns only that instance and its own pairs; an instance that breaks the protocol is closed (`broken`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from gnomon_coordinator.effects import Close, Descriptors, Effect, Kill, Notify, Send
from gnomon_coordinator.pool_size import PoolSize
from gnomon_coordinator.protocol import BadMessageError, Change, InstanceMessage, Task
from gnomon_coordinator.shadow_lifecycle import ShadowLifecycle
from gnomon_coordinator.shadow_states import ENDING, Shadow, State
from gnomon_coordinator.table import Kind, Record, RegistrationTable, Status
from gnomon_core.blocks import Layers

EMPTY_S = 20.0
"""Seconds within which a container must report that it is ready."""

Arguments = ParamSpec("Arguments")


def contained(event: Callable[Concatenate[NodeState, Arguments], None]) -> Callable[Concatenate[NodeState, Arguments], None]:
    """Mark an event that concerns one Shadow: a fault of the state machine ends that Shadow, not the coordinator.

    Events that concern several Shadows contain the faults of each one in `ShadowLifecycle`, so that the others are handled too.
    """

    @wraps(event)
    def handle(self: NodeState, /, *args: Arguments.args, **options: Arguments.kwargs) -> None:
        with self.lifecycle.contain_faults():
            event(self, *args, **options)

    return handle


class NodeState:
    """The node's instances, Shadows and pool. `take` returns the effects since it was last called."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.table = RegistrationTable(epoch)
        self.pool = PoolSize()
        self._effects: list[Effect] = []
        self.lifecycle = ShadowLifecycle(self.table, self._effects, self.pool, epoch)
        self._forking: set[str] = set()
        """Containers for the pool whose fork was requested and has not been reported yet."""
        self._silent_until_s: dict[str, float] = {}
        self._reported_pool = 0

    def _shadow(self, shadow_id: str | None) -> Shadow | None:
        return None if shadow_id is None else self.lifecycle.shadows.get(shadow_id)

    def take(self) -> list[Effect]:
        effects = list(self._effects)
        self._effects.clear()
        return effects

    # Events of the supervisor

    def found(self, instance_id: str, kind: Kind, now_s: float) -> None:
        """Record an instance that the supervisor reports. It may be older than this coordinator."""
        if instance_id in self.table:
            return
        if kind is Kind.SHADOW:
            self.lifecycle.found(instance_id, now_s)
        elif kind is Kind.EMPTY:
            self._forking.discard(instance_id)
            if self.lifecycle.container_found(instance_id, now_s):
                return
            self.table.insert(instance_id, kind)
            self._silent_until_s[instance_id] = now_s + EMPTY_S
        else:
            self.table.insert(instance_id, kind)
        self._effects.append(Send(instance_id, {"do": "hello"}))

    def promoted(self, instance_id: str) -> None:
        """Record that a Shadow has become a Body."""
        self.lifecycle.promoted(instance_id)

    def gone(self, instance_id: str, now_s: float) -> None:
        """Handle the end of an instance, or the failure of its fork."""
        if instance_id in self._forking:
            self._forking.discard(instance_id)
            self.pool.failed(now_s)
        if self.lifecycle.container_gone(instance_id, now_s):
            return
        self._silent_until_s.pop(instance_id, None)
        row = self.table.get(instance_id)
        shadow = self._shadow(instance_id)
        if shadow is not None:
            self.lifecycle.gone(shadow)
        elif row is not None:
            if row.kind is Kind.BODY:
                self.lifecycle.body_gone(row, now_s)
            elif row.status is Status.SILENT:
                self.pool.failed(now_s)
            self.table.remove(instance_id)

    # Messages of instances

    @contained
    def handle_message(self, instance_id: str, message: InstanceMessage, now_s: float) -> None:
        """Handle a message of an instance.

        Raises:
            BadMessageError: an instance of its kind does not send that.

        """
        row = self.table.get(instance_id)
        if row is None or row.status is Status.BARRED or message.epoch != self.epoch or message.say == "stale":
            # A message for another coordinator. Only the supervisor decides whether this one has been replaced.
            return
        if row.kind is Kind.EMPTY:
            self._handle_container_message(row, message, now_s)
        elif row.kind is Kind.SHADOW:
            self._handle_shadow_message(row, message, now_s)
        else:
            self._handle_body_message(row, message, now_s)

    def _handle_container_message(self, row: Record, message: InstanceMessage, now_s: float) -> None:
        if message.say == "registered" and row.status is Status.SILENT:
            # An earlier coordinator loaded it, and ended before the supervisor had received its new name.
            self._end_container(row, now_s)
            return
        if message.say != "empty":
            raise BadMessageError(f"an empty container says {message.say!r}")
        if row.status is Status.SILENT:
            self.table.set_status(row.id, Status.READY)
            self._silent_until_s.pop(row.id, None)
            self.pool.filled()

    def _handle_shadow_message(self, row: Record, message: InstanceMessage, now_s: float) -> None:
        shadow = self._shadow(row.id)
        if shadow is None or shadow.state in ENDING:
            return
        if message.say == "empty":
            self.lifecycle.is_empty(shadow, now_s)
        elif message.say == "registered":
            self.lifecycle.registered(shadow, message, now_s)
        elif message.say == "changed":
            self.lifecycle.shadow_changed(shadow, message, now_s)
        elif message.say == "paired":
            self.lifecycle.shadow_joined(shadow, now_s)
        elif message.say == "unpaired":
            self.lifecycle.shadow_left(shadow, message, now_s)
        elif message.say == "complete":
            self.lifecycle.shadow_complete(shadow, message, now_s)
        elif message.say == "failed":
            self.lifecycle.end(shadow, message.reason or "it failed", now_s)
        elif message.say == "body" and shadow.state not in (State.FOUND, State.BECOMING_BODY):
            # In these two states it may have just become a Body, which only the supervisor can confirm.
            raise BadMessageError("a Shadow says that it is a Body")

    def _handle_body_message(self, row: Record, message: InstanceMessage, now_s: float) -> None:
        if message.say in ("empty", "registered"):
            raise BadMessageError(f"a Body says {message.say!r}")
        if message.say == "body":
            if row.status is Status.SILENT:
                self.table.set_status(row.id, Status.READY)
            self.lifecycle.body_introduced(row, message, now_s)
            return
        shadow = self._shadow(message.shadow) if message.shadow in row.partners else None
        if shadow is None:
            # About an earlier Shadow, another Body's, or one that was reported and not requested yet: that report is outdated.
            if message.say in ("unpaired", "failed") and message.shadow is not None:
                self.lifecycle.forget_report(row, message.shadow)
            return
        if message.say == "paired":
            self.lifecycle.body_paired(shadow, now_s)
        elif message.say == "changed":
            self.lifecycle.body_changed(shadow, message, now_s)
        elif message.say == "unpaired":
            self.lifecycle.body_unpaired(shadow, message.reason, now_s)
        elif message.say == "failed":
            self.lifecycle.end(shadow, message.reason or "its Body could not use it", now_s)

    @contained
    def broken(self, instance_id: str, reason: str, now_s: float) -> None:
        """Handle an instance that breaks the protocol or does not read: a Body serves on without Shadows, others are ended."""
        shadow = self._shadow(instance_id)
        if shadow is not None:
            self.lifecycle.protocol_broken(shadow, reason, now_s)
            return
        self._effects.append(Close(instance_id))
        row = self.table.get(instance_id)
        if row is not None and row.kind is Kind.BODY:
            self._bar(row, f"the link to its Body is closed: {reason}", now_s)
        elif row is not None:
            self._end_container(row, now_s)

    def _bar(self, body: Record, reason: str, now_s: float) -> None:
        self.table.set_status(body.id, Status.BARRED)
        self.lifecycle.body_barred(body, reason, now_s)

    def disconnected(self, instance_id: str, now_s: float) -> None:
        """Handle an instance that has closed its socket. Usually it has ended, as the supervisor will report; if not, end it."""
        row = self.table.get(instance_id)
        if row is not None and row.kind is Kind.BODY:
            self._bar(row, "its Body has gone", now_s)
        elif row is not None and row.kind is Kind.EMPTY:
            self._end_container(row, now_s)
        elif row is not None:
            self._effects.append(Kill(instance_id))

    def _end_container(self, row: Record, now_s: float) -> None:
        if row.status is Status.SILENT:
            self.pool.failed(now_s)
        self._effects.append(Kill(row.id))
        self.table.set_status(row.id, Status.ENDING)

    # Requests of the platform

    def create(self, task: Task, layers: Layers, descriptors: Descriptors | None, now_s: float) -> None:
        """Create a Shadow, or continue with an existing one. Takes ownership of the descriptors."""
        self.lifecycle.create(task, layers, descriptors, now_s)

    @contained
    def change(self, shadow_id: str, change: Change, now_s: float) -> None:
        """Change a Shadow's task. An unknown Shadow is ignored: the next request to create it has the complete task."""
        shadow = self._shadow(shadow_id)
        if shadow is not None and shadow.task is not None and shadow.state not in ENDING:
            self.lifecycle.change(shadow, change.applied_to(shadow.task), now_s)

    def remote_body_connected(self, shadow_id: str, connection: Descriptors) -> None:
        """Hand the connection of a Body on another node to its Shadow."""
        shadow = self._shadow(shadow_id)
        ready = (State.AWAITING_BODY, State.PAIRED, State.ADDING_BLOCKS)
        if shadow is not None and shadow.task is not None and shadow.task.afar and shadow.state in ready:
            self.lifecycle.remote_body_connected(shadow, connection)

    @contained
    def promote(self, shadow_id: str, descriptors: Descriptors, now_s: float) -> None:
        """Promote a Shadow to a Body. Takes ownership of the descriptors. An unknown Shadow has ended, and is ignored."""
        shadow = self._shadow(shadow_id)
        if shadow is None:
            descriptors.close()
        else:
            self.lifecycle.promote(shadow, descriptors, now_s)

    @contained
    def destroy(self, shadow_id: str, now_s: float) -> None:
        """End a Shadow, after its Body has unpaired. For an unknown Shadow the platform gets an event that it does not exist."""
        shadow = self._shadow(shadow_id)
        if shadow is not None:
            self.lifecycle.end(shadow, "asked to", now_s)
        else:
            self._effects.append(Notify({"event": "failed", "shadow": shadow_id, "reason": "this node has no such Shadow"}))

    @contained
    def not_connected(self, shadow_id: str, reason: str, now_s: float) -> None:
        """Handle a pair whose shared memory could not be made."""
        shadow = self._shadow(shadow_id)
        if shadow is not None:
            self.lifecycle.end(shadow, reason, now_s)

    def report(self) -> None:
        """Send the platform the whole table."""
        rows = [[row.id, row.kind, list(row.partners), list(row.blocks), row.status] for row in self.table]
        self._effects.append(Notify({"event": "table", "epoch": self.epoch, "rows": rows}))

    # Time

    def tick(self, now_s: float) -> None:
        """Handle everything that is due: timeouts, loads, the size of the pool."""
        self.lifecycle.time_out(now_s)
        for container, until_s in list(self._silent_until_s.items()):
            if now_s >= until_s:
                del self._silent_until_s[container]
                if container in self.table:
                    self.broken(container, "it never said that it is ready", now_s)
        self.lifecycle.tick(now_s)
        self._keep_pool(now_s)

    def _keep_pool(self, now_s: float) -> None:
        missing = self.pool.missing(self._containers(), now_s)
        for _ in range(missing):
            self._forking.add(self.lifecycle.fork())
        spare = self.table.of_kind(Kind.EMPTY, Status.READY)
        for row in spare[: max(0, -missing)]:
            self._effects.append(Kill(row.id))
            self.table.set_status(row.id, Status.ENDING)
        if self.pool.target != self._reported_pool:
            self._reported_pool = self.pool.target
            self._effects.append(Notify({"event": "pool", "containers": self._reported_pool}))

    def _containers(self) -> int:
        """The number of empty containers that exist or are being forked."""
        return len(self._forking) + len(self.table.of_kind(Kind.EMPTY, Status.SILENT, Status.READY))

    def due_s(self) -> float | None:
        """The time at which `tick` must be called next; None if only an event can change anything."""
        others = (self.pool.due_s(self._containers()), self.lifecycle.due_s())
        return min((*self._silent_until_s.values(), *(other_s for other_s in others if other_s is not None)), default=None)
