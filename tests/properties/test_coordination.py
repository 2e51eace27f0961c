"""Pairs end up as they are requested, in any order of events, and everybody believes the same.

A node in miniature around the real state machine: a supervisor, a platform and instances that keep to the protocol, each behind
queues that are delivered in any order; `calm_down` delivers everything until nothing is under way. Instances die, coordinators
are replaced in the middle of anything, requests come and go, and some Shadows become Bodies. Of some pairs one half is on another
node, and may be cut off. When it is quiet again, what the Bodies do, what the table says and what the platform believes is one
and the same.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_coordinator.effects import Assign, Close, Connect, Descriptors, Effect, Fork, Kill, LogError, Notify, Send
from gnomon_coordinator.node_state import NodeState
from gnomon_coordinator.protocol import Change, InstanceMessage, PairReport, Task, Way
from gnomon_coordinator.table import Kind, Status
from gnomon_core.blocks import Block, Layers


class Link:
    """The data socket and the buffers of a pair. Who has one end notices when the other is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.holders: list[Process] = []

    def close(self, by: Process, world: World) -> None:
        self.closed = True
        if by in self.holders:
            self.holders.remove(by)
        for other in self.holders:
            if other.alive:
                other.notice(world)


@dataclass
class Process:
    """An instance that keeps to the protocol."""

    name: str
    kind: Kind
    alive: bool = True
    epoch: int = 0
    inbox: deque[dict[str, Any]] = field(default_factory=deque)
    shadow: str | None = None
    body: str | None = None
    blocks: tuple[int, ...] = ()
    split: tuple[int, ...] = ()
    links: dict[str, Link] = field(default_factory=dict)
    """A Body's by Shadow, a Shadow's own by its name."""
    pairs: dict[str, PairReport] = field(default_factory=dict)
    """The work of a Body with each of its Shadows."""
    loads: bool = False
    whole: bool = False
    """Of a Shadow: whether it loads the rest of the model, and whether it has it."""
    afar: bool = False
    """Of a Shadow: whether its Body is on another node."""
    called: Kind = Kind.EMPTY
    """The kind of instance that the supervisor has on record."""

    def obey(self, message: dict[str, Any], world: World) -> None:
        if message["epoch"] < self.epoch:
            self.say(world, say="stale")
            return
        self.epoch = message["epoch"]
        getattr(self, f"_{message['do']}")(message, world)

    def say(self, world: World, **fields: Any) -> None:
        world.to_coordinator.setdefault(self.name, deque()).append(InstanceMessage(epoch=self.epoch, **fields))

    def _hello(self, _message: dict[str, Any], world: World) -> None:
        if self.kind is Kind.BODY:
            self.say(world, say="body", pairs=tuple(self.pairs.values()))
        elif self.shadow is None:
            self.say(world, say="empty")
        else:
            self._register(world)

    def _register(self, world: World) -> None:
        about = {"shadow": self.shadow, "body": self.body, "blocks": self.blocks, "afar": self.afar}
        self.say(world, say="registered", paired=bool(self.links), **about)

    def _load(self, message: dict[str, Any], world: World) -> None:
        self.shadow, self.body, self.blocks = message["shadow"], message["body"], message["blocks"]
        self.afar = message["afar"]
        self._register(world)

    def _pair(self, message: dict[str, Any], world: World) -> None:
        shadow = message["shadow"]
        self._take(shadow, world.way_of(message), world)
        self.pairs[shadow] = PairReport(shadow, message["blocks"], message["split"], "url" in message)
        self.say(world, say="paired", shadow=shadow)
        self.notice(world)

    def _join(self, message: dict[str, Any], world: World) -> None:
        self._take(message["shadow"], world.way_of(message), world)
        self.say(world, say="paired", shadow=self.shadow)
        self.notice(world)

    def _take(self, shadow: str, link: Link, world: World) -> None:
        old = self.links.get(shadow)
        self.links[shadow] = link
        link.holders.append(self)
        if old is not None:
            old.close(self, world)

    def notice(self, world: World) -> None:
        """Let go of what the other side has closed."""
        for shadow in [shadow for shadow, link in self.links.items() if link.closed]:
            self.let_go(shadow, world)

    def _change(self, message: dict[str, Any], world: World) -> None:
        shadow = message["shadow"]
        if self.kind is not Kind.BODY:
            self.blocks, self.split = message["blocks"], message["split"]
            self.say(world, say="changed", blocks=self.blocks)
        elif shadow not in self.pairs:
            self.say(world, say="failed", shadow=shadow)
        else:
            other = world.kept.get(shadow)
            held = message["blocks"] if other is None else other.blocks
            assert set(message["blocks"]) <= set(held), "a Body is sent to blocks that its Shadow does not have"
            self.pairs[shadow] = replace(self.pairs[shadow], blocks=message["blocks"], split=message["split"])
            self.say(world, say="changed", shadow=shadow, blocks=message["blocks"])

    def _unpair(self, message: dict[str, Any], world: World) -> None:
        if message["shadow"] in self.pairs:
            self.let_go(message["shadow"], world)

    def let_go(self, shadow: str, world: World) -> None:
        self.pairs.pop(shadow, None)
        link = self.links.pop(shadow, None)
        if link is not None:
            link.close(self, world)
        self.say(world, say="unpaired", shadow=shadow, reason="")

    def _promote(self, _message: dict[str, Any], world: World) -> None:
        self.loads = not self.whole
        if self.whole:
            self.say(world, say="complete", shadow=self.shadow)

    def load_rest(self, world: World) -> None:
        """The last piece of the model has come."""
        self.loads, self.whole = False, True
        self.say(world, say="complete", shadow=self.shadow)

    def _serve(self, _message: dict[str, Any], world: World) -> None:
        assert self.whole, "it is to serve what it does not hold"
        for link in self.links.values():
            link.close(self, world)
        self.kind, self.shadow, self.body, self.links = Kind.BODY, None, None, {}
        world.hellos.append(self)

    def _stop(self, _message: dict[str, Any], world: World) -> None:
        if self.kind is not Kind.BODY:
            world.die(self)


BLOCKS = tuple(Block(f"b{n}", n, n + 1, (f"v{n}",), (f"v{n + 1}",), (), 1, 1, True) for n in range(4))  # noqa: FBT003
LAYERS = Layers("0" * 64, ("v4",), BLOCKS, {f"v{n}": 10 for n in range(5)})


class World:
    """Everything but the state machine, and the queues between."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_s = 0.0
        self.epoch = 0
        self.kept: dict[str, Process] = {}
        self.to_coordinator: dict[str, deque[InstanceMessage]] = {}
        self.to_supervisor: deque[Effect] = deque()
        self.from_supervisor: deque[tuple[str, str, Kind]] = deque()
        self.wishes: deque[Callable[[], None]] = deque()
        self.pending_events: deque[dict[str, Any]] = deque()
        self.wanted: dict[str, Task] = {}
        self.ended: set[str] = set()
        self.rising: set[str] = set()
        """Shadows that are to become Bodies."""
        self.hellos: deque[Process] = deque()
        self.bereaved: set[str] = set()
        """Shadows that have died, or whose Bodies have."""
        self.slow = False
        """So much time has passed while something was to be done that waits may have ended."""
        self.believed: dict[str, set[str]] = {}
        """By Body, the Shadows that the platform takes it to work with."""
        self.far: dict[str, Link] = {}
        """By Shadow, the connections of pairs of which one half is on another node."""
        self.names = 0
        self.restart()

    # the coordinator

    def restart(self) -> None:
        """Another coordinator, that knows nothing."""
        self.epoch += 1
        self.node = NodeState(self.epoch)
        self.links: dict[str, Process] = {}
        while self.to_supervisor and self.rng.random() < 0.9:
            self._supervise()
        self.to_supervisor.clear()
        self.from_supervisor.clear()
        for name, process in self.kept.items():
            self.from_supervisor.append(("found", name, process.called))
        while self.from_supervisor:
            self._hear_supervisor()
        self.node.pool.resize(1, self.now_s)
        while self.pending_events:
            # What the last one had still told comes before the first words of this one.
            self._listen()
        for shadow in self.wanted:
            if shadow in self.ended:
                self.wishes.append(lambda name=shadow: self.node.destroy(name, self.now_s))
            else:
                self.wishes.append(lambda name=shadow: self._wish(name))
        self.carry_out()

    def _wish(self, shadow: str) -> None:
        if shadow in self.wanted:
            self.node.create(self.wanted[shadow], LAYERS, Descriptors(()), self.now_s)
        if shadow in self.wanted and shadow in self.rising:
            self.node.promote(shadow, Descriptors(()), self.now_s)

    def way_of(self, message: dict[str, Any]) -> Link:
        """The link of a message to pair or to join: to an instance of this node, or a connection to another node."""
        if "link" not in message:
            self.far[message["shadow"]] = Link()
        return message.get("link") or self.far[message["shadow"]]

    def _come(self, shadow: str) -> None:
        """The Body of a Shadow that serves from afar."""
        process = self.kept.get(shadow)
        if shadow in self.wanted and process is not None and not process.links:
            self.node.remote_body_connected(shadow, Descriptors(()))

    def carry_out(self) -> None:
        while effects := self.node.take():
            for effect in effects:
                self._do(effect)
        self.check()

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send(name, message, _):
                self._send(name, dict(message))
            case Connect(body, shadow, pair, join):
                link = Link()
                self._send(shadow, {**join, "link": link})
                self._send(body, {**pair, "link": link})
                # An end that reaches nobody is closed.
                link.closed = not (body in self.links and shadow in self.links)
            case Notify(message):
                self.pending_events.append(dict(message))
            case LogError(text):
                raise AssertionError(text)
            case Close(name):
                self.links.pop(name, None)
            case Assign(container, shadow, _):
                if container in self.links:
                    self.links[shadow] = self.links.pop(container)
                self.to_supervisor.append(effect)
            case Fork() | Kill():
                self.to_supervisor.append(effect)

    def _send(self, name: str, message: dict[str, Any]) -> None:
        if name in self.links:
            self.links[name].inbox.append({**message, "epoch": self.epoch})

    def check(self) -> None:
        """Check the invariants of every moment."""
        for row in self.node.table:
            for name in row.partners:
                partner = self.node.table.get(name)
                assert row.id in partner.partners
                assert {partner.kind, row.kind} == {Kind.BODY, Kind.SHADOW}
            assert row.kind is Kind.BODY or len(row.partners) <= 1

    # the supervisor

    def make(self, name: str, kind: Kind) -> Process:
        process = self.kept[name] = Process(name, kind, called=kind)
        self.from_supervisor.append(("found", name, kind))
        return process

    def die(self, process: Process) -> None:
        if not process.alive:
            return
        process.alive = False
        for name, other in list(self.kept.items()):
            if other is process:
                del self.kept[name]
                self.from_supervisor.append(("gone", name, process.kind))
                self.bereaved |= {name, *(task.shadow for task in self.wanted.values() if task.body == name)}
                self.ended.discard(name)
                self.wanted.pop(name, None)
                self.believed.pop(name, None)
                for shadows in self.believed.values():
                    shadows.discard(name)
        for link in (*process.links.values(), *(message.get("link") for message in process.inbox)):
            if link is not None:
                link.close(process, self)

    def _hear_supervisor(self) -> None:
        what, name, kind = self.from_supervisor.popleft()
        if what == "promoted":
            self.node.promoted(name)
        elif what == "found":
            if name in self.kept:
                self.links[name] = self.kept[name]
            self.node.found(name, kind, self.now_s)
        else:
            self.node.gone(name, self.now_s)
            self.carry_out()
            self.links.pop(name, None)
        self.carry_out()
        self.pass_time(0.0)

    def _supervise(self) -> None:
        match self.to_supervisor.popleft():
            case Fork(name):
                if self.rng.random() < 0.1:
                    self.from_supervisor.append(("gone", name, Kind.EMPTY))
                else:
                    self.make(name, Kind.EMPTY)
            case Assign(container, shadow, _):
                if container in self.kept:
                    process = self.kept.pop(container)
                    process.name, process.called = shadow, Kind.SHADOW
                    self.kept[shadow] = process
                    self.to_coordinator.setdefault(shadow, deque()).extend(self.to_coordinator.pop(container, ()))
            case Kill(name):
                if name in self.kept:
                    assert self.kept[name].called is not Kind.BODY, "a coordinator never ends a Body"
                    self.die(self.kept[name])

    # the platform

    def _listen(self) -> None:
        event = self.pending_events.popleft()
        if event["event"] == "pool":
            return
        shadow = event["shadow"]
        if event["event"] == "paired" and shadow in self.wanted:
            self.believed.setdefault(event["body"], set()).add(shadow)
        elif event["event"] == "registered" and shadow in self.wanted and self.wanted[shadow].afar:
            self.wishes.append(lambda: self._come(shadow))
        elif event["event"] == "unpaired":
            self.believed.get(event["body"], set()).discard(shadow)
        elif event["event"] == "ending":
            assert shadow in self.ended or shadow in self.bereaved or self.slow, (
                f"{shadow} is ended without need: {event['reason']}"
            )
            self.ended.add(shadow)
        elif event["event"] == "failed" and shadow not in self.kept:
            for shadows in self.believed.values():
                shadows.discard(shadow)
            self.wanted.pop(shadow, None)
            self.ended.discard(shadow)

    def _welcome(self) -> None:
        """A Shadow has said its first word as a Body, on the channel that the platform gave it."""
        process = self.hellos.popleft()
        if not process.alive or process.name in self.ended:
            return
        self.wanted.pop(process.name, None)
        for shadows in self.believed.values():
            shadows.discard(process.name)
        process.called = Kind.BODY
        self.from_supervisor.append(("promoted", process.name, Kind.BODY))

    # what may happen next

    def quiet_steps(self) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = [
            lambda process=process: self._obey(process) for process in self.kept.values() if process.inbox
        ]
        steps += [lambda name=name: self._speak(name) for name, said in self.to_coordinator.items() if said]
        for queue, act in (
            (self.to_supervisor, self._supervise),
            (self.from_supervisor, self._hear_supervisor),
            (self.wishes, self._grant),
            (self.pending_events, self._listen),
            (self.hellos, self._welcome),
        ):
            if queue:
                steps.append(act)
        steps += [lambda process=process: process.load_rest(self) for process in self.kept.values() if process.loads]
        return steps

    def _obey(self, process: Process) -> None:
        if process.alive:
            process.obey(process.inbox.popleft(), self)

    def _speak(self, name: str) -> None:
        said = self.to_coordinator[name].popleft()
        if name in self.links:
            self.node.handle_message(name, said, self.now_s)
            self.carry_out()
            self.pass_time(0.0)

    def _grant(self) -> None:
        self.wishes.popleft()()
        self.carry_out()
        self.pass_time(0.0)

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.node.tick(self.now_s)
        self.carry_out()

    def calm_down(self) -> None:
        """Deliver everything, in any order, until nothing is under way and no wait has a bound left."""
        for _ in range(5000):
            steps = self.quiet_steps()
            if steps:
                self.rng.choice(steps)()
                continue
            due_s = self.node.due_s()
            if due_s is None:
                return
            self.slow = True
            self.pass_time(max(0.0, due_s - self.now_s))
        raise AssertionError("it never calms down")


SHADOWS = 2
"""That a Body is wished to have at most."""


class DisturbedWorld(World):
    """The node, and what disturbs it."""

    def disturb(self) -> None:
        what = self.rng.choice(["body", "create", "create", "destroy", "change", "promote", "kill", "cut", "restart", "time"])
        bodies = [name for name, process in self.kept.items() if process.kind is Kind.BODY]
        if what == "body" and len(bodies) < 3:
            self.names += 1
            self.make(f"b{self.names}", Kind.BODY)
        elif what == "create" and bodies:
            self._want(self.rng.choice(bodies))
        elif what == "destroy" and self.wanted:
            shadow = self.rng.choice(sorted(self.wanted))
            self.ended.add(shadow)
            self.wishes.append(lambda: self.node.destroy(shadow, self.now_s))
        elif what == "change" and self.wanted:
            self._alter(self.rng.choice(sorted(self.wanted)))
        elif what == "promote" and (here := [name for name, task in self.wanted.items() if not task.afar and task.way is None]):
            rising = self.rng.choice(sorted(here))
            self.rising.add(rising)
            self.wishes.append(lambda: self.node.promote(rising, Descriptors(()), self.now_s))
        elif what == "kill" and self.kept:
            self.die(self.kept[self.rng.choice(sorted(self.kept))])
        elif what == "cut" and self.far:
            self._cut(self.rng.choice(sorted(self.far)))
        elif what == "restart" and self.rng.random() < 0.3:
            self.restart()
        elif what == "time":
            self.pass_time(self.rng.choice([0.01, 0.1, 1.0]))
            self.slow = self.now_s > 4.0

    def _cut(self, shadow: str) -> None:
        """The other node's half of a pair has gone."""
        link = self.far.pop(shadow)
        link.closed = True
        self.bereaved.add(shadow)
        for holder in list(link.holders):
            if holder.alive:
                holder.notice(self)

    def _want(self, body: str) -> None:
        if sum(task.body == body for task in self.wanted.values()) >= SHADOWS:
            return
        self.names += 1
        shadow = f"s{self.names}"
        where = self.rng.choice(["here", "here", "the Shadow", "the Body"])
        task = self._task(shadow, body)
        if where == "the Shadow":
            task = replace(task, way=Way("http://other", "token"))
        elif where == "the Body":
            task = replace(task, body=f"elsewhere-{self.names}", afar=True)
        self.wanted[shadow] = task
        self.wishes.append(lambda: self._wish(shadow))

    def _task(self, shadow: str, body: str) -> Task:
        cpus = self.rng.choice([(0,), (1,), (0, 1)])
        return Task(shadow, body, "/p", "/w", "/l", "shared", len(cpus), cpus, self._blocks(), (0, 1), 4)

    def _blocks(self) -> tuple[int, ...]:
        return tuple(sorted(self.rng.sample(range(4), self.rng.randint(1, 3))))

    def _alter(self, shadow: str) -> None:
        if shadow in self.rising:
            return
        task = self.wanted[shadow] = replace(self.wanted[shadow], blocks=self._blocks())
        change = Change(task.cores, task.cpus, task.blocks, task.split)
        self.wishes.append(lambda: self.node.change(shadow, change, self.now_s))


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_node_converges_to_the_requested_pairs_after_any_disturbance(seed: int) -> None:
    world = DisturbedWorld(random.Random(seed))
    for _ in range(world.rng.randint(10, 150)):
        steps = world.quiet_steps()
        if steps and world.rng.random() < 0.7:
            world.rng.choice(steps)()
        else:
            world.disturb()
    world.calm_down()
    assert not world.rising & set(world.wanted), "a Shadow that was to become a Body is none"
    bodies = {name: process for name, process in world.kept.items() if process.kind is Kind.BODY}
    for name, body in bodies.items():
        row = world.node.table.get(name)
        assert row is not None
        wanted = {task.shadow: task for task in world.wanted.values() if task.body == name}
        assert set(body.pairs) == set(row.partners) == world.believed.get(name, set()) == set(wanted)
        for partner, task in wanted.items():
            its_row = world.node.table.get(partner)
            assert body.pairs[partner].blocks == its_row.blocks == task.blocks
            if task.way is None:
                assert world.kept[partner].blocks == task.blocks
                assert body.links[partner] is world.kept[partner].links[partner]
            assert not body.links[partner].closed
            assert row.status is its_row.status is Status.PAIRED
    for task in world.wanted.values():
        if task.afar:
            row = world.node.table.get(task.shadow)
            assert row.status is Status.PAIRED
            assert set(task.blocks) <= set(world.kept[task.shadow].blocks)
            assert not world.kept[task.shadow].links[task.shadow].closed
    shadows = {name for name, process in world.kept.items() if process.shadow is not None}
    assert shadows == {task.shadow for task in world.wanted.values() if task.way is None}, "a Shadow that nobody wants is left"
    assert len(world.node.table.of_kind(Kind.EMPTY, Status.READY)) == 1
