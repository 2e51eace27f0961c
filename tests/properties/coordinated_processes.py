"""Instances of a node in miniature: Bodies and Shadows that keep to the protocol, and the link between the two of a pair."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gnomon_coordinator.protocol import InstanceMessage, PairReport
from gnomon_coordinator.table import Kind

if TYPE_CHECKING:
    from tests.properties.coordinated_world import World


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
    """What a Body does with each of its Shadows."""
    loads: bool = False
    whole: bool = False
    """Of a Shadow: whether it loads the rest of the model, and whether it has it."""
    afar: bool = False
    """Of a Shadow: whether its Body is on another node."""
    called: Kind = Kind.EMPTY
    """What the supervisor takes it for."""

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
