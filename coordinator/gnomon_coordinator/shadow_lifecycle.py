"""The lifecycle of each Shadow of the node, from request to end. `shadow_states` has the states and transitions.

Creation is level-triggered. After a restart of the coordinator, a request may arrive for a Shadow that already exists. The next
step then follows from the observed and the desired state only, not from history.

Changes. A Shadow always holds the blocks that its Body offloads: the Shadow loads the new blocks, then the Body switches between
two batches, and only then the Shadow drops the old blocks.

    old {1, 2}, new {2, 3}:   Shadow: hold {1, 2, 3}   ▶   Body: offload {2, 3}   ▶   Shadow: hold {2, 3}

Promotion. A Shadow that becomes a Body loads the rest of the model while the pair goes on; then its Body unpairs, and it serves.
A Body unpairs between two batches, and a Shadow loads while its Body computes alone, at the end of a batch: in sequence, this
takes two batches. If few weights are missing, the Body is told to unpair at once, and the promotion takes one batch.

The platform observes on the new batch channel that a Shadow has become a Body, and the supervisor confirms it. The instance's own
messages are not trusted, because from its first batch on it runs a user's function. Until the supervisor confirms, the instance
counts as a Shadow, so that a restarted coordinator finds the pair, or the rest of it, and starts over; loaded weights stay
loaded. A Body that ends, or unpairs, during the promotion does not end the Shadow.

End. The Body unpairs first, then the Shadow stops; a process that does not answer in time is not waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from gnomon_coordinator import protocol
from gnomon_coordinator.effects import Assign, Close, Connect, Descriptors, Effect, Fork, Kill, LogError, Notify, Send
from gnomon_coordinator.pool_size import PoolSize
from gnomon_coordinator.protocol import BadMessageError, InstanceMessage, PairReport, Task
from gnomon_coordinator.shadow_states import (
    ENDING,
    KNOWN_TO_BODY,
    PROMOTING,
    TRANSITIONS,
    LoadQueue,
    Shadow,
    State,
    UndeclaredTransitionError,
)
from gnomon_coordinator.table import Kind, Record, RegistrationTable, Status
from gnomon_core.blocks import Layers
from gnomon_core.pairs import MAX_SHADOWS
from gnomon_core.shared_memory import buffer_sizes

MAX_CONTAINERS = 3
"""Containers that are tried for one Shadow."""
CLAIM_S = 10.0
"""Seconds after a restart for which a Body keeps a Shadow on another node that the platform has not requested yet."""
UNPAIR_AT_ONCE_BYTES = 128 << 20
"""Weights of this size load in some tens of milliseconds: less than the Body's current batch takes."""
REMEMBERED_ENDS = 256


class ShadowLifecycle:
    """Every Shadow of the node and its transitions. `effects` is the list that all effects are appended to, in order."""

    def __init__(self, table: RegistrationTable, effects: list[Effect], pool: PoolSize, epoch: int) -> None:
        self.table = table
        self.shadows: dict[str, Shadow] = {}
        self._effects = effects
        self._pool = pool
        self._load_queue = LoadQueue(self.shadows)
        self._prefix = f"pool-{epoch}-"
        self._forks = 0
        self._forking: dict[str, Shadow] = {}
        """Containers that are being forked for a Shadow."""
        self._assigned: dict[str, Shadow] = {}
        """Containers that have become Shadows which have not registered yet."""
        self._reports: dict[str, dict[str, PairReport]] = {}
        """The pairs that Bodies reported when they introduced themselves, until adopted or ended; by Body and Shadow."""
        self._unclaimed_until_s: dict[tuple[str, str], float] = {}
        """The deadline of each reported pair whose Shadow on another node was not requested yet, by Body and Shadow."""
        self._ended_remotely: deque[str] = deque(maxlen=REMEMBERED_ENDS)
        """Shadows on other nodes that have ended here. A request for one may still be on its way: after a restart it is
        repeated."""

    # Transitions

    def _enter(self, shadow: Shadow, state: State, now_s: float) -> None:
        """Change the state, start its timeout, and show both in the table. No other function changes a state.

        Raises:
            UndeclaredTransitionError: the state may not follow the present one. Nothing has changed.

        """
        if state is not shadow.state and state not in TRANSITIONS[shadow.state]:
            raise UndeclaredTransitionError(shadow, state)
        shadow.state = state
        shadow.deadline_s = None if state.timeout_s is None else now_s + state.timeout_s
        self.table.set_status(shadow.id, state.status)
        body = self._body_of(shadow)
        if body is not None and state in KNOWN_TO_BODY:
            self._update_body_status(body.id)

    @contextmanager
    def contain_faults(self) -> Iterator[None]:
        """Handle a part of an event that concerns one Shadow: an undeclared transition ends that Shadow, not the coordinator.

        Without this, one defect in the state machine would end the coordinator, and each restart of it interrupts every pair of
        the node. The Shadow is killed, because what its process holds is no longer known.
        """
        try:
            yield
        except UndeclaredTransitionError as error:
            self._effects.append(LogError(f"{error}; this Shadow is killed"))
            self._kill_faulty(error.shadow)

    def _advance(self, shadow: Shadow, now_s: float) -> None:
        """Take the next step towards the requested task, if one can be taken now."""
        if shadow.task is None:
            return
        body = self._body_of(shadow)
        if shadow.state is State.AWAITING_BODY and body is not None and body.status is not Status.SILENT:
            self._meet_body(shadow, body, now_s)
        elif shadow.state is State.PAIRED and shadow.active != shadow.task:
            self._add_blocks(shadow, now_s)
        elif shadow.state is State.PAIRED and shadow.promotion_fds is not None:
            self._complete(shadow, shadow.promotion_fds, now_s)

    def time_out(self, now_s: float) -> None:
        """End every state whose timeout has passed."""
        for shadow in list(self.shadows.values()):
            if shadow.deadline_s is not None and now_s >= shadow.deadline_s:
                with self.contain_faults():
                    self._end_after_timeout(shadow, now_s)

    def _end_after_timeout(self, shadow: Shadow, now_s: float) -> None:
        if shadow.state is State.UNPAIRING:
            self._separate(shadow, "its Body did not answer")
            self._stop(shadow, now_s)
        elif shadow.state is State.STOPPING:
            self._kill(shadow, now_s)
        else:
            self.end(shadow, f"waited {shadow.state.timeout_s:g} s for {shadow.state.awaits}", now_s)

    def tick(self, now_s: float) -> None:
        """Start the loads whose turn it is, and unpair Bodies from Shadows on other nodes that were never requested."""
        self._start_loads(now_s)
        for (body, shadow), until_s in list(self._unclaimed_until_s.items()):
            if shadow in self.shadows or now_s >= until_s:
                del self._unclaimed_until_s[body, shadow]
            if shadow not in self.shadows and now_s >= until_s:
                self._effects.append(Send(body, protocol.unpair(shadow)))

    def due_s(self) -> float | None:
        """The time at which `time_out` or `tick` must be called next; None if nothing is due."""
        times = [shadow.deadline_s for shadow in self.shadows.values() if shadow.deadline_s is not None]
        times += self._unclaimed_until_s.values()
        turn_s = self._load_queue.due_s()
        return min(times if turn_s is None else [*times, turn_s], default=None)

    # Requests of the platform

    def create(self, task: Task, layers: Layers, descriptors: Descriptors | None, now_s: float) -> None:
        """Create a Shadow, or continue with an existing one. Takes ownership of the descriptors."""
        shadow = self.shadows.get(task.shadow)
        reason = self._refusal(task, layers, descriptors, shadow)
        with self.contain_faults():
            if reason and shadow is not None:
                self.end(shadow, reason, now_s)
            elif reason:
                self._effects.append(Notify({"event": "failed", "shadow": task.shadow, "reason": reason}))
            elif shadow is None and task.way is not None:
                self._create_remote(task, layers, now_s)
            elif shadow is None:
                shadow = Shadow(task.shadow, State.AWAITING_CONTAINER, task, task, layers, descriptors)
                self.shadows[task.shadow] = shadow
                self.table.insert(task.shadow, Kind.SHADOW, Status.LOADING)
                self._link(task)
                descriptors = None
                self._find_container(shadow, now_s)
            else:
                # A Shadow keeps the descriptors that it has; one that was found after a restart may need these.
                if shadow.task is None:
                    shadow.launch_fds, descriptors = descriptors, None
                shadow.task, shadow.layers = task, layers
                self._resume(shadow, now_s)
        if descriptors is not None:
            descriptors.close()

    def change(self, shadow: Shadow, task: Task, now_s: float) -> None:
        """Change a Shadow's task: now, or once the previous change is complete."""
        if not self._refusal(task, shadow.layers, None, shadow):
            shadow.task = task
            self._resume(shadow, now_s)

    def promote(self, shadow: Shadow, descriptors: Descriptors, now_s: float) -> None:
        """Promote a Shadow to a Body, now or once no change is in progress. Takes ownership of the descriptors."""
        if shadow.state in ENDING or shadow.state is State.BECOMING_BODY:
            descriptors.close()
            return
        shadow.close_promotion_fds()
        shadow.promotion_fds = descriptors
        if shadow.state is State.PAIRED:
            self._complete(shadow, descriptors, now_s)

    def _create_remote(self, task: Task, layers: Layers, now_s: float) -> None:
        """Connect a Shadow that another node has created with its Body on this node."""
        # The Body may already work with this Shadow by another task: then an earlier coordinator has connected them.
        shadow = Shadow(task.shadow, State.AWAITING_BODY, task, None, layers, loaded=task.blocks, has_buffers=True)
        self.shadows[task.shadow] = shadow
        self.table.insert(task.shadow, Kind.SHADOW)
        self._link(task)
        self._enter(shadow, State.AWAITING_BODY, now_s)
        self._advance(shadow, now_s)

    def _refusal(self, task: Task, layers: Layers | None, descriptors: Descriptors | None, shadow: Shadow | None) -> str:
        """The reason to refuse a task; empty if it is accepted."""
        ended = task.shadow in self.table or task.shadow in self._ended_remotely
        if shadow is None and (ended or (descriptors is None and task.way is None)):
            return "it has ended"
        reason = "" if task.afar else self._body_refusal(task)
        if not reason and (layers is None or not task.blocks or task.blocks[-1] >= len(layers.blocks)):
            return "the model has no such blocks"
        return reason

    def _body_refusal(self, task: Task) -> str:
        body = self.table.get(task.body)
        if body is None or body.kind is not Kind.BODY:
            return f"there is no Body {task.body}"
        if body.status is Status.BARRED:
            return f"{task.body} has broken the protocol"
        if not _accepts(body, task.shadow):
            return f"{task.body} has {MAX_SHADOWS} Shadows already"
        return ""

    def _resume(self, shadow: Shadow, now_s: float) -> None:
        """Load a Shadow that was found unloaded after a restart, check the claim of a loaded one, or take the next step."""
        if shadow.state is not State.UNCLAIMED or shadow.task is None:
            self._advance(shadow, now_s)
        elif shadow.container is None:
            self._accept_claim(shadow, shadow.task, now_s)
        else:
            self._load_found_container(shadow, shadow.task, now_s)

    def _accept_claim(self, shadow: Shadow, task: Task, now_s: float) -> None:
        """Accept the request for a Shadow that was found loaded, if it names the same Body and the model has its blocks."""
        assert shadow.layers is not None
        if shadow.claimed_body != task.body:
            self.end(shadow, f"it belongs to {shadow.claimed_body}", now_s)
            return
        if shadow.loaded and shadow.loaded[-1] >= len(shadow.layers.blocks):
            reason = f"it reports block {shadow.loaded[-1]} of {len(shadow.layers.blocks)}"
            self.protocol_broken(shadow, reason, now_s)
            return
        if task.afar:
            self._enter(shadow, State.PAIRED if shadow.has_buffers else State.AWAITING_BODY, now_s)
        else:
            self.table.link(task.body, shadow.id, shadow.loaded, ())
            self._enter(shadow, State.AWAITING_BODY, now_s)
        self._advance(shadow, now_s)

    def _load_found_container(self, shadow: Shadow, task: Task, now_s: float) -> None:
        fds = shadow.launch_fds
        reason = "it was never loaded" if fds is None else self._refusal(task, shadow.layers, fds, shadow)
        if reason:
            self.end(shadow, reason, now_s)
            return
        self._link(task)
        self._queue(shadow, now_s)

    # Containers and loads

    def fork(self) -> str:
        """Ask for an empty container and return its id."""
        self._forks += 1
        container = f"{self._prefix}{self._forks}"
        self._effects.append(Fork(container))
        return container

    def container_found(self, container: str, now_s: float) -> bool:
        """Assign a forked container to the Shadow that it was forked for. Returns whether there is one."""
        shadow = self._forking.pop(container, None)
        if shadow is not None:
            with self.contain_faults():
                self._assign(shadow, container)
                self._load(shadow, now_s)
        return shadow is not None

    def container_gone(self, container: str, now_s: float) -> bool:
        """Handle the end of a container. Returns whether it was to become a Shadow, which then gets another container."""
        shadow = self._forking.pop(container, None)
        if shadow is None:
            shadow = self._assigned.pop(container, None)
            if shadow is None:
                return False
            self._effects.append(Close(shadow.id))
        if shadow.state in (State.AWAITING_CONTAINER, State.QUEUED, State.LOADING):
            with self.contain_faults():
                self._find_container(shadow, now_s)
        else:
            self._separate(shadow, "it is ended")
            self._forget(shadow)
            self._notify("failed", shadow, reason="its container ended before it could load anything")
        return True

    def _find_container(self, shadow: Shadow, now_s: float) -> None:
        """Take a container from the pool, or have one forked."""
        shadow.attempts += 1
        shadow.container = None
        self._enter(shadow, State.AWAITING_CONTAINER, now_s)
        if shadow.attempts > MAX_CONTAINERS:
            self.end(shadow, f"{MAX_CONTAINERS} containers ended before they could load anything", now_s)
            return
        self._pool.taken(now_s)
        # A container that has not reported yet is fine, unless it was found after a restart: it may have been loaded already.
        own = [row for row in self.table.of_kind(Kind.EMPTY, Status.SILENT) if row.id.startswith(self._prefix)]
        available = self.table.of_kind(Kind.EMPTY, Status.READY) or own
        if available:
            self.table.remove(available[0].id)
            self._assign(shadow, available[0].id)
            self._queue(shadow, now_s)
        else:
            self._forking[self.fork()] = shadow

    def _assign(self, shadow: Shadow, container: str) -> None:
        """Turn a container into the Shadow."""
        assert shadow.task is not None
        shadow.container = container
        self._assigned[container] = shadow
        self._effects.append(Assign(container, shadow.id, shadow.task.join))

    def _queue(self, shadow: Shadow, now_s: float) -> None:
        self._enter(shadow, State.QUEUED, now_s)
        self._start_loads(now_s)

    def _start_loads(self, now_s: float) -> None:
        for shadow in self._load_queue.start(now_s):
            with self.contain_faults():
                self._load(shadow, now_s)

    def _load(self, shadow: Shadow, now_s: float) -> None:
        assert shadow.task is not None
        shadow.active = shadow.task
        self._effects.append(Send(shadow.id, protocol.load(shadow.task), shadow.launch_fds))
        self._enter(shadow, State.LOADING, now_s)

    # Messages of a Shadow

    def found(self, shadow_id: str, now_s: float) -> None:
        """Record a Shadow of an earlier coordinator, or a container assigned as one, that the supervisor has handed over."""
        shadow = self.shadows[shadow_id] = Shadow(shadow_id, State.FOUND)
        self.table.insert(shadow_id, Kind.SHADOW)
        self._enter(shadow, State.FOUND, now_s)

    def is_empty(self, shadow: Shadow, now_s: float) -> None:
        """Record that the process is a container which an earlier coordinator assigned, and never told to load."""
        if shadow.state is State.FOUND:
            shadow.container = shadow.id
            self._enter(shadow, State.UNCLAIMED, now_s)
            self._resume(shadow, now_s)

    def registered(self, shadow: Shadow, message: InstanceMessage, now_s: float) -> None:
        """Record that the Shadow has loaded its blocks.

        Raises:
            BadMessageError: the report differs from the task.

        """
        if message.shadow != shadow.id:
            raise BadMessageError(f"it registered as {message.shadow}")
        if shadow.state is State.LOADING:
            self._loaded(shadow, message, now_s)
        elif shadow.state is State.FOUND:
            self._found_loaded(shadow, message, now_s)

    def _loaded(self, shadow: Shadow, message: InstanceMessage, now_s: float) -> None:
        if shadow.active is None or (message.body, message.blocks) != (shadow.active.body, shadow.active.blocks):
            raise BadMessageError("it has registered for another Body, or with other blocks")
        shadow.loaded = message.blocks
        shadow.close_launch_fds()
        self._assigned.pop(shadow.container or "", None)
        self._notify("registered", shadow, resident_bytes=message.resident_bytes, load_ms=message.load_ms)
        self._enter(shadow, State.AWAITING_BODY, now_s)
        self._advance(shadow, now_s)

    def _found_loaded(self, shadow: Shadow, message: InstanceMessage, now_s: float) -> None:
        shadow.close_launch_fds()
        body = self.table.get(message.body)
        afar = message.afar if shadow.task is None else shadow.task.afar
        if not afar and (body is None or body.kind is not Kind.BODY or not _accepts(body, shadow.id)):
            self.end(shadow, "its Body has gone", now_s)
            return
        self._notify("registered", shadow, resident_bytes=message.resident_bytes, load_ms=message.load_ms)
        shadow.claimed_body, shadow.loaded, shadow.has_buffers = str(message.body), message.blocks, message.paired
        self._enter(shadow, State.UNCLAIMED, now_s)
        self._resume(shadow, now_s)

    def shadow_changed(self, shadow: Shadow, message: InstanceMessage, now_s: float) -> None:
        """Record that the Shadow holds other blocks now.

        Raises:
            BadMessageError: the blocks differ from the requested ones.

        """
        if shadow.active is None or shadow.state not in (State.ADDING_BLOCKS, State.DROPPING_BLOCKS):
            return
        dropping = shadow.state is State.DROPPING_BLOCKS
        expected = shadow.active.blocks if dropping else _union(shadow, shadow.active)
        if message.blocks != expected:
            raise BadMessageError("the Shadow holds other blocks than it was assigned")
        shadow.loaded = expected
        if dropping:
            self._enter(shadow, State.PAIRED, now_s)
            self._advance(shadow, now_s)
        else:
            self._switch_body(shadow, now_s)

    def shadow_joined(self, shadow: Shadow, now_s: float) -> None:
        """Record that the Shadow has its pair's buffers, or the connection of a Body on another node: the pair is complete."""
        shadow.has_buffers = True
        if shadow.state is State.AWAITING_BODY and shadow.task is not None and shadow.task.afar:
            self._enter(shadow, State.PAIRED, now_s)
            self._advance(shadow, now_s)

    def shadow_left(self, shadow: Shadow, message: InstanceMessage, now_s: float) -> None:
        """Handle a Shadow's report that its Body has disconnected. For a pair on this node the Body's own message counts."""
        if shadow.task is None:
            shadow.has_buffers = False
        elif shadow.task.afar:
            self.end(shadow, message.reason or "its Body has gone", now_s)

    def shadow_complete(self, shadow: Shadow, message: InstanceMessage, now_s: float) -> None:
        """Record that the Shadow holds the whole model."""
        if shadow.state is not State.COMPLETING:
            return
        self._notify("complete", shadow, resident_bytes=message.resident_bytes, load_ms=message.load_ms)
        body = self._body_of(shadow)
        if body is None:
            self._become_body(shadow, now_s)
        else:
            self._enter(shadow, State.LEAVING_BODY, now_s)
            self._effects.append(Send(body.id, protocol.unpair(shadow.id)))

    # Messages of a Body

    def body_introduced(self, body: Record, message: InstanceMessage, now_s: float) -> None:
        """Handle the first message of a Body: a report of its pairs."""
        self._reports[body.id] = {pair.shadow: pair for pair in message.pairs}
        unknown = [pair for pair in message.pairs if pair.shadow not in self.shadows]
        self._effects += [Send(body.id, protocol.unpair(pair.shadow)) for pair in unknown if not pair.elsewhere]
        # Supervisors hand over local Shadows only: after a restart, a remote Shadow is known by the platform's request alone.
        self._unclaimed_until_s |= {(body.id, pair.shadow): now_s + CLAIM_S for pair in unknown if pair.elsewhere}
        for shadow in self.shadows_of(body):
            with self.contain_faults():
                self._advance(shadow, now_s)

    def body_paired(self, shadow: Shadow, now_s: float) -> None:
        """Record that the Body uses the buffers that it was given."""
        if shadow.state is State.CONNECTING:
            self._pair_active(shadow, now_s)

    def body_changed(self, shadow: Shadow, message: InstanceMessage, now_s: float) -> None:
        """Record that the Body offloads other blocks now, or other shares."""
        if shadow.state is State.SWITCHING_BODY and shadow.active is not None and message.blocks == shadow.active.blocks:
            self._pair_active(shadow, now_s)

    def body_unpaired(self, shadow: Shadow, reason: str, now_s: float) -> None:
        """Record that the Body works without this Shadow, on request or by itself."""
        if shadow.state is State.RELEASING_BUFFERS:
            self._buffers_released(shadow, now_s)
        elif not self.outlives_body(shadow, reason, now_s):
            if shadow.state in KNOWN_TO_BODY:
                self._notify("ending", shadow, reason=reason)
            elif shadow.state is not State.UNPAIRING:
                return
            self._separate(shadow, reason)
            self._stop(shadow, now_s)

    def forget_report(self, body: Record, shadow_id: str) -> None:
        """Discard a Body's report of a pair: it has unpaired from a Shadow that is not its partner in the table."""
        self._reports.get(body.id, {}).pop(shadow_id, None)

    # Pairs

    def remote_body_connected(self, shadow: Shadow, connection: Descriptors) -> None:
        """Hand the connection of a Body on another node to the Shadow, which answers it or closes the connection."""
        assert shadow.task is not None
        assert shadow.layers is not None
        join = protocol.join(shadow.task, buffer_sizes(shadow.layers, shadow.task.max_batch))
        self._effects.append(Send(shadow.id, join, connection))

    def _meet_body(self, shadow: Shadow, body: Record, now_s: float) -> None:
        """Connect a Shadow with its Body, or adopt the connection that both report."""
        assert shadow.task is not None
        report = self._reports.get(body.id, {}).get(shadow.id)
        if body.id != shadow.task.body:
            self.end(shadow, f"it belongs to {body.id}", now_s)
        elif report is not None and not (shadow.has_buffers and set(report.blocks) <= set(shadow.loaded)):
            self._release_buffers(shadow, now_s)
        elif report is not None:
            assert shadow.layers is not None
            # The largest batch, for which the buffers were made, never changes.
            shadow.buffer_bytes = buffer_sizes(shadow.layers, shadow.task.max_batch)
            self.table.link(body.id, shadow.id, report.blocks, report.split)
            shadow.connected = True
            if (report.blocks, report.split) == (shadow.task.blocks, shadow.task.split):
                shadow.active = shadow.task
                self._pair_active(shadow, now_s)
            else:
                self._enter(shadow, State.PAIRED, now_s)
                self._notify_paired(shadow)
                self._advance(shadow, now_s)
        elif shadow.loaded == shadow.task.blocks:
            shadow.active = shadow.task
            self._connect(shadow, now_s)
        else:
            self._add_blocks(shadow, now_s)

    def _connect(self, shadow: Shadow, now_s: float) -> None:
        """Give both sides buffers. The Body must have no buffers of this pair."""
        assert shadow.active is not None
        assert shadow.layers is not None
        shadow.buffer_bytes = buffer_sizes(shadow.layers, shadow.active.max_batch)
        self._enter(shadow, State.CONNECTING, now_s)
        pair, join = protocol.pair(shadow.active), protocol.join(shadow.active)
        if shadow.active.way is not None:
            self._effects.append(Send(shadow.active.body, pair))
        else:
            self._effects.append(Connect(shadow.active.body, shadow.id, pair, join, *shadow.buffer_bytes))

    def _release_buffers(self, shadow: Shadow, now_s: float) -> None:
        """Tell the Body to release its buffers of this pair."""
        assert shadow.task is not None
        shadow.active = shadow.active or shadow.task
        self._enter(shadow, State.RELEASING_BUFFERS, now_s)
        self._effects.append(Send(shadow.task.body, protocol.unpair(shadow.id)))

    def _buffers_released(self, shadow: Shadow, now_s: float) -> None:
        """Give the Body other buffers, now that it has released those of this pair."""
        assert shadow.active is not None
        self._reports.get(shadow.active.body, {}).pop(shadow.id, None)
        if set(shadow.active.blocks) <= set(shadow.loaded):
            self._connect(shadow, now_s)
        else:
            shadow.connected = False
            self._add_blocks(shadow, now_s)

    def _add_blocks(self, shadow: Shadow, now_s: float) -> None:
        """First step of a change: the Shadow holds old and new blocks."""
        assert shadow.task is not None
        before, shadow.active = shadow.active, shadow.task
        if shadow.task.way is not None:
            # The coordinator of the Shadow's node sends it the blocks to hold.
            shadow.loaded = shadow.task.blocks
            self._switch_body(shadow, now_s)
            return
        union = _union(shadow, shadow.task)
        same_cores = before is not None and (before.cores, before.cpus) == (shadow.task.cores, shadow.task.cpus)
        if same_cores and union == shadow.loaded:
            self._switch_body(shadow, now_s)
            return
        self._enter(shadow, State.ADDING_BLOCKS, now_s)
        self._effects.append(Send(shadow.id, protocol.change_shadow(shadow.task, union)))

    def _switch_body(self, shadow: Shadow, now_s: float) -> None:
        """Second step of a change: its Body offloads the new blocks, over larger buffers where these are too small."""
        assert shadow.active is not None
        assert shadow.layers is not None
        if shadow.active.afar:
            # The coordinator of the Body's node tells the Body.
            self._enter(shadow, State.PAIRED, now_s)
            self._advance(shadow, now_s)
            return
        needed = buffer_sizes(shadow.layers, shadow.active.max_batch)
        if not shadow.connected:
            self._connect(shadow, now_s)
        elif needed[0] > shadow.buffer_bytes[0] or needed[1] > shadow.buffer_bytes[1]:
            self._release_buffers(shadow, now_s)
        else:
            self._enter(shadow, State.SWITCHING_BODY, now_s)
            self._effects.append(Send(shadow.active.body, protocol.change_body(shadow.active)))

    def _pair_active(self, shadow: Shadow, now_s: float) -> None:
        """Last step of a change, which the Body has applied: the Shadow drops the old blocks."""
        assert shadow.active is not None
        shadow.connected = True
        self.table.link(shadow.active.body, shadow.id, shadow.active.blocks, shadow.active.split)
        self._notify_paired(shadow)
        if shadow.loaded == shadow.active.blocks:
            self._enter(shadow, State.PAIRED, now_s)
            self._advance(shadow, now_s)
        else:
            self._enter(shadow, State.DROPPING_BLOCKS, now_s)
            self._effects.append(Send(shadow.id, protocol.change_shadow(shadow.active, shadow.active.blocks)))

    # Promotion

    def _complete(self, shadow: Shadow, descriptors: Descriptors, now_s: float) -> None:
        """First step of a promotion: the Shadow loads the rest of the model."""
        self._enter(shadow, State.COMPLETING, now_s)
        self._effects.append(Send(shadow.id, {"do": "promote", "shadow": shadow.id}, descriptors))
        body = self._body_of(shadow)
        if body is not None and shadow.missing_bytes() <= UNPAIR_AT_ONCE_BYTES:
            self._effects.append(Send(body.id, protocol.unpair(shadow.id)))

    def outlives_body(self, shadow: Shadow, reason: str, now_s: float) -> bool:
        """Handle the end of a Body or its unpairing. Returns whether the Shadow continues because it is being promoted."""
        if shadow.state not in PROMOTING:
            return False
        self._separate(shadow, reason)
        if shadow.state is State.LEAVING_BODY:
            self._become_body(shadow, now_s)
        return True

    def _become_body(self, shadow: Shadow, now_s: float) -> None:
        shadow.close_promotion_fds()
        self._enter(shadow, State.BECOMING_BODY, now_s)
        self._effects.append(Send(shadow.id, {"do": "serve", "shadow": shadow.id}))

    def promoted(self, shadow_id: str) -> None:
        """Handle the supervisor's confirmation that a Shadow has become a Body."""
        row, shadow = self.table.get(shadow_id), self.shadows.get(shadow_id)
        if row is None or row.kind is not Kind.SHADOW:
            return
        if shadow is not None:
            self._separate(shadow, "it has become a Body")
            self._forget(shadow)
        self.table.insert(shadow_id, Kind.BODY)
        self._effects.append(Send(shadow_id, {"do": "hello"}))

    # Ends

    def end(self, shadow: Shadow, reason: str, now_s: float) -> None:
        """End a Shadow: first its Body unpairs, then it stops."""
        if shadow.state in ENDING:
            return
        shadow.close_launch_fds()
        shadow.close_promotion_fds()
        if shadow.state is State.AWAITING_CONTAINER:
            self._forget(shadow)
            self._notify("failed", shadow, reason=reason)
            return
        self._notify("ending", shadow, reason=reason)
        body = self._body_of(shadow)
        if shadow.state in KNOWN_TO_BODY and body is not None and body.status is not Status.BARRED:
            self._enter(shadow, State.UNPAIRING, now_s)
            self._effects.append(Send(body.id, protocol.unpair(shadow.id)))
        elif shadow.state in (State.FOUND, State.QUEUED, State.LOADING):
            self._kill(shadow, now_s)
        else:
            self._stop(shadow, now_s)

    def protocol_broken(self, shadow: Shadow, reason: str, now_s: float) -> None:
        """Close the link of a Shadow that breaks the protocol or does not read its messages, and kill it."""
        self._effects.append(Close(shadow.id))
        self.end(shadow, reason, now_s)
        if shadow.id in self.shadows:
            self._kill(shadow, now_s)

    def body_gone(self, body: Record, now_s: float) -> None:
        """End the Shadows of a Body that has ended, except those that are being promoted."""
        self._reports.pop(body.id, None)
        for shadow in self.shadows_of(body):
            with self.contain_faults():
                if self.outlives_body(shadow, "its Body has gone", now_s):
                    continue
                if shadow.state is State.AWAITING_CONTAINER:
                    self.end(shadow, "its Body has gone", now_s)
                else:
                    self._notify("ending", shadow, reason="its Body has gone")
                    self._kill(shadow, now_s)

    def body_barred(self, body: Record, reason: str, now_s: float) -> None:
        """End the Shadows of a Body whose messages are no longer read, except those that are being promoted."""
        for shadow in self.shadows_of(body):
            with self.contain_faults():
                if not self.outlives_body(shadow, reason, now_s):
                    self.end(shadow, reason, now_s)

    def gone(self, shadow: Shadow) -> None:
        """Handle the end of a Shadow's process."""
        body = self._body_of(shadow)
        known = body is not None and shadow.state in KNOWN_TO_BODY and body.status is not Status.BARRED
        bodies = {body.id} if body is not None and known else set()
        # After a restart a Body may have reported the pair before the Shadow has registered.
        bodies |= {name for name, reports in self._reports.items() if shadow.id in reports}
        self._effects += [Send(name, protocol.unpair(shadow.id)) for name in sorted(bodies)]
        self._separate(shadow, "its Shadow has ended")
        self._forget(shadow)

    def _stop(self, shadow: Shadow, now_s: float) -> None:
        if not self._ends_remotely(shadow):
            self._enter(shadow, State.STOPPING, now_s)
            self._effects.append(Send(shadow.id, {"do": "stop"}))

    def _kill(self, shadow: Shadow, now_s: float) -> None:
        if shadow.state is not State.KILLED and not self._ends_remotely(shadow):
            shadow.close_launch_fds()
            shadow.close_promotion_fds()
            self._separate(shadow, "it is ended")
            self._enter(shadow, State.KILLED, now_s)
            self._effects.append(Kill(shadow.id))

    def _kill_faulty(self, shadow: Shadow) -> None:
        """End a Shadow whose next state is undeclared. `State.KILLED` has no timeout, so this needs no time."""
        reason = "its coordinator's state machine failed"
        body = self._body_of(shadow)
        if body is not None and body.status is not Status.BARRED:
            # In any state the Body may hold buffers of this pair by now. To a Body that holds none, this says nothing new.
            self._effects.append(Send(body.id, protocol.unpair(shadow.id)))
        if shadow.state is State.AWAITING_CONTAINER:
            self._forget(shadow)
            self._notify("failed", shadow, reason=reason)
        else:
            self._notify("ending", shadow, reason=reason)
            self._kill(shadow, 0.0)

    def _ends_remotely(self, shadow: Shadow) -> bool:
        """Remove a Shadow on another node: on the Body's node the unpairing is its end. Returns False for a local Shadow."""
        if shadow.task is None or shadow.task.way is None:
            return False
        self._separate(shadow, "it is ended")
        self._forget(shadow)
        self._notify("failed", shadow, reason="its Body works without it")
        self._ended_remotely.append(shadow.id)
        return True

    # The table, and the events for the platform

    def shadows_of(self, body: Record) -> list[Shadow]:
        """The Body's Shadows."""
        return [self.shadows[name] for name in body.partners if name in self.shadows]

    def _body_of(self, shadow: Shadow) -> Record | None:
        """The Shadow's Body, while the table has them as partners."""
        row = self.table.get(shadow.id)
        return None if row is None else self.table.get(row.partner)

    def _link(self, task: Task) -> None:
        """Make the two partners in the table, where the Body is on this node."""
        if not task.afar:
            self.table.link(task.body, task.shadow, task.blocks, task.split)

    def _separate(self, shadow: Shadow, reason: str) -> None:
        """End the partnership in the table, and notify the platform if it knows of the pair."""
        body = self._body_of(shadow)
        if body is None:
            return
        self._reports.get(body.id, {}).pop(shadow.id, None)
        self.table.unlink(shadow.id)
        self._update_body_status(body.id)
        if shadow.reported_paired:
            shadow.reported_paired = False
            self._notify("unpaired", shadow, body=body.id, reason=reason)

    def _forget(self, shadow: Shadow) -> None:
        """Remove a Shadow that has ended."""
        shadow.close_launch_fds()
        shadow.close_promotion_fds()
        for containers in (self._forking, self._assigned):
            for container in [name for name, other in containers.items() if other is shadow]:
                del containers[container]
        self.shadows.pop(shadow.id, None)
        body = self._body_of(shadow)
        self.table.remove(shadow.id)
        if body is not None:
            self._update_body_status(body.id)

    def _update_body_status(self, body_id: str) -> None:
        """Derive the status of a Body that keeps to the protocol from the states of its Shadows."""
        body = self.table.get(body_id)
        if body is None or body.status in (Status.SILENT, Status.BARRED):
            return
        statuses = {shadow.state.status for shadow in self.shadows_of(body) if shadow.state in KNOWN_TO_BODY}
        status = Status.PAIRED if Status.PAIRED in statuses else Status.PAIRING if statuses else Status.READY
        self.table.set_status(body_id, status)

    def _notify(self, event: str, shadow: Shadow, **details: object) -> None:
        """Send the platform an event about a Shadow."""
        self._effects.append(Notify({"event": event, "shadow": shadow.id, **details}))

    def _notify_paired(self, shadow: Shadow) -> None:
        """Send the platform the pair's blocks and split, as in the table."""
        row = self.table.get(shadow.id)
        assert row is not None
        shadow.reported_paired = True
        self._notify("paired", shadow, body=row.partner, blocks=list(row.blocks), split=list(row.split))


def _union(shadow: Shadow, task: Task) -> tuple[int, ...]:
    """The blocks that a Shadow holds while it changes to a task: old and new."""
    return tuple(sorted({*shadow.loaded, *task.blocks}))


def _accepts(body: Record, shadow_id: str) -> bool:
    """True if this Shadow is the Body's, or may become one of its Shadows."""
    return shadow_id in body.partners or len(body.partners) < MAX_SHADOWS
