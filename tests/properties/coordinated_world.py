"""A node in miniature around the real state machine: a supervisor, a platform and instances behind queues.

What the queues hold is delivered in any order, and `calm_down` delivers everything until nothing is under way. What happens
beside that is `disturbed_world`'s.
"""

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from gnomon_coordinator.effects import Assign, Close, Connect, Descriptors, Effect, Fork, Kill, LogError, Send, Tell
from gnomon_coordinator.node_state import NodeState
from gnomon_coordinator.protocol import InstanceMessage, Task
from gnomon_coordinator.table import Kind
from gnomon_core.blocks import Block, Layers
from tests.properties.coordinated_processes import Link, Process

BLOCKS = tuple(Block(f"b{n}", n, n + 1, (f"v{n}",), (f"v{n + 1}",), (), 1, 1, True) for n in range(4))  # noqa: FBT003
LAYERS = Layers("0" * 64, ("v4",), BLOCKS, {f"v{n}": 10 for n in range(5)})


class World:
    """Everything but the state machine, and the queues between."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_s = 0.0
        self.epoch = 0
        self.kept: dict[str, Process] = {}
        self.to_coordinator: dict[str, deque[InstanceMessage]] = {}
        self.to_supervisor: deque[Effect] = deque()
        self.from_supervisor: deque[tuple[str, str, Kind]] = deque()
        self.wishes: deque[Callable[[], None]] = deque()
        self.told: deque[dict[str, Any]] = deque()
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
        while self.to_supervisor and self.chance.random() < 0.9:
            self._supervise()
        self.to_supervisor.clear()
        self.from_supervisor.clear()
        for name, process in self.kept.items():
            self.from_supervisor.append(("found", name, process.called))
        while self.from_supervisor:
            self._hear_supervisor()
        self.node.pool.resize(1, self.now_s)
        while self.told:
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
        """What a message to pair or to join brings: a link to one of this node, or a connection to another."""
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
            case Tell(message):
                self.told.append(dict(message))
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
        """What holds at every moment."""
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
                if self.chance.random() < 0.1:
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
        event = self.told.popleft()
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
            (self.told, self._listen),
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
            self.node.said(name, said, self.now_s)
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
                self.chance.choice(steps)()
                continue
            due_s = self.node.due_s()
            if due_s is None:
                return
            self.slow = True
            self.pass_time(max(0.0, due_s - self.now_s))
        raise AssertionError("it never calms down")
