"""Hand-overs in any order of events: never two owners that dispatch, and no request is lost or answered twice.

Replicas that keep to the rules, a leader, a board and the instances of three functions, with everything that is said between them
on its way for as long as it pleases. Replicas come, ask to leave, freeze, are taken for gone while they are frozen, come back,
and are killed. At the end it is quiet: everything that is on its way arrives.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_core.ownership import OwnershipMap, Replica
from gnomon_gateway.replicas.assignment import OwnedFunctions, Place, Sighting, next_map, owner

FUNCTIONS = ("resnet.fn", "bert.fn", "echo.fn")
MOST_REPLICAS = 12


@dataclass
class Instance:
    """An instance that runs one batch after the other and refuses batches of an older epoch than it has seen."""

    function: str
    epoch: int = 0
    takers: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Sent:
    """A batch of one request that an instance executes."""

    request: int
    instance: Instance


class Process:
    """A gateway replica: `waiting` are requests whose clients it has, with their functions; `executing` what it dispatched."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.holdings = OwnedFunctions(name)
        self.waiting: dict[int, str] = {}
        self.executing: list[tuple[str, Sent]] = []
        self.frozen = False
        self.leaving = False
        self.alive = True

    def drained(self) -> None:
        busy = {function for function, _ in self.executing}
        for function in self.holdings.draining - busy:
            self.holdings.released(function)


class World:
    def __init__(self) -> None:
        self.processes: list[Process] = []
        self.maps: list[OwnershipMap] = []
        self.instances = [Instance(function) for function in FUNCTIONS for _ in range(2)]
        self.mail: list[tuple[Process, Callable[[], None]]] = []
        self.answers: dict[int, int] = {}
        self.held_by_killed: set[int] = set()
        self.requests = 0

    # What may happen

    def join(self, _: int) -> None:
        if len(self.processes) < MOST_REPLICAS:
            self.processes.append(Process(f"gateway-{len(self.processes)}"))

    def leave(self, number: int) -> None:
        if (process := self._pick(number)) is not None:
            process.leaving = True

    def freeze(self, number: int) -> None:
        if (process := self._pick(number)) is not None:
            process.frozen = not process.frozen

    def kill(self, number: int) -> None:
        """Kill a replica: its clients are cut off, and what it executed was executed."""
        if (process := self._pick(number)) is not None:
            process.alive = False
            self.held_by_killed |= set(process.waiting) | {sent.request for _, sent in process.executing}

    def lead(self, number: int) -> None:
        """The leader looks. Whoever is killed is gone; one frozen replica may be taken for gone as well."""
        there = [process for process in self.processes if process.alive]
        silent = {process.name for process in there if process.frozen}
        gone = {process.name for process in self.processes if not process.alive}
        gone |= set(sorted(silent)[: number % 2])
        seen = [Sighting(replica.name, f"http://{replica.name}", replica.leaving) for replica in there if not replica.frozen]
        if (new := next_map(self.maps[-1] if self.maps else None, seen, gone)) is not None:
            assert new.epoch == len(self.maps) + 1
            self.maps.append(new)

    def tell(self, number: int) -> None:
        """A map is on its way to a replica, perhaps an old one."""
        if self.maps and (process := self._pick(number)) is not None:
            new = self.maps[-1 - number % min(2, len(self.maps))]
            self.mail.append((process, partial(self._apply, process, new)))

    def say(self, number: int) -> None:
        """A replica says to another what it drains; that is on its way."""
        speaker, hearer = self._pick(number), self._pick(number // 7)
        if speaker is not None and hearer is not None and not speaker.frozen:
            word, known = speaker.holdings.status(), speaker.holdings.map
            self.mail.append((hearer, partial(self._hear, hearer, known, word)))

    def deliver(self, number: int) -> None:
        if self.mail:
            process, message = self.mail[number % len(self.mail)]
            if not process.frozen:
                del self.mail[number % len(self.mail)]
                if process.alive:
                    message()

    def ask(self, number: int) -> None:
        """A client sends a request to some replica."""
        process = self._pick(number)
        if process is not None and not process.frozen:
            process.waiting[self.requests] = FUNCTIONS[number % len(FUNCTIONS)]
            self.answers[self.requests] = 0
            self.requests += 1

    def go_on(self, number: int) -> None:
        """A replica looks where its requests are to go now."""
        process = self._pick(number)
        if process is not None and not process.frozen:
            for request, function in list(process.waiting.items()):
                self._pass(process, process, request, function, number)

    def finish(self, number: int) -> None:
        """An instance has executed its oldest batch; a frozen replica does not learn of it."""
        process = self._pick(number)
        if process is not None and not process.frozen and process.executing:
            _function, sent = process.executing.pop(0)
            self.answers[sent.request] += 1
            process.drained()

    # How

    def _pass(self, client: Process, at: Process, request: int, function: str, number: int) -> None:
        """A request of `client`'s is looked at by the replica `at`."""
        place = at.holdings.place(function)
        if place is Place.HERE and client.waiting.pop(request, None) is not None:
            self._dispatch(client, at, request, function, number)
        elif isinstance(place, Replica) and at is client:
            other = next(process for process in self.processes if process.name == place.id)
            self.mail.append((other, partial(self._pass, client, other, request, function, number)))

    def _dispatch(self, client: Process, at: Process, request: int, function: str, number: int) -> None:
        instance = [instance for instance in self.instances if instance.function == function][number % 2]
        epoch = at.holdings.epoch
        if epoch < instance.epoch:
            client.waiting[request] = function
            at.holdings.refused(function, instance.epoch)
            at.drained()
            return
        self._check_alone(at, function)
        instance.epoch = epoch
        instance.takers.append((epoch, at.name))
        at.executing.append((function, Sent(request, instance)))

    def _check_alone(self, at: Process, function: str) -> None:
        """Nobody else has anything of the function in flight, but who was taken for gone."""
        for other in self.processes:
            entry = at.holdings.map.member(other.name)
            counted = other.alive and other is not at and entry is not None and entry.since <= other.holdings.epoch
            if counted and any(name == function for name, _ in other.executing):
                raise AssertionError(f"{at.name} and {other.name} dispatch {function}")

    def _apply(self, process: Process, new: OwnershipMap | None) -> None:
        if new is not None:
            process.holdings.apply(new)
            process.drained()

    def _hear(self, process: Process, known: OwnershipMap | None, word: object) -> None:
        self._apply(process, known)
        process.holdings.take_status(word)  # type: ignore[arg-type]

    def _pick(self, number: int) -> Process | None:
        alive = [process for process in self.processes if process.alive]
        return alive[number % len(alive)] if alive else None

    def settle(self) -> None:
        """Nothing more happens, and everything arrives."""
        for process in self.processes:
            process.frozen = False
        if not any(process.alive and not process.leaving for process in self.processes):
            self.processes.append(Process("last"))
        self.lead(0)
        for _ in range(8):
            alive = range(sum(process.alive for process in self.processes))
            for number in alive:
                self._apply(self._pick(number) or self.processes[0], self.maps[-1])
                while process_busy(self._pick(number)):
                    self.finish(number)
            for speaker in alive:
                for hearer in alive:
                    first, second = self._pick(speaker), self._pick(hearer)
                    assert second is not None
                    self._hear(second, first.holdings.map, first.holdings.status())
            for number in alive:
                self.go_on(number)
            while self.mail:
                self.deliver(0)


def process_busy(process: Process | None) -> bool:
    return process is not None and bool(process.executing)


STEPS = 1500
OFTEN = {"tell": 4, "say": 8, "deliver": 30, "ask": 6, "go_on": 10, "finish": 3}
SELDOM = {"lead": 1.5, "freeze": 0.5, "join": 0.4, "leave": 0.2, "kill": 0.15}
NAMES, WEIGHTS = zip(*(OFTEN | SELDOM).items(), strict=True)


@given(st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_never_two_owners_and_every_request_has_one_answer(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    for number in range(3):
        world.join(number)
    for name in rng.choices(NAMES, WEIGHTS, k=STEPS):
        getattr(world, name)(rng.randrange(1 << 16))
    world.settle()
    for request, answers in world.answers.items():
        assert answers == 1 or request in world.held_by_killed, f"request {request} has {answers} answers"
        assert answers <= 1
    for instance in world.instances:
        epochs = [epoch for epoch, _ in instance.takers]
        assert epochs == sorted(epochs), "an instance has taken a batch of an owner that it had seen the successor of"
        # Within an epoch an instance has one owner.
        assert len(set(instance.takers)) == len(set(epochs))


def replicas(count: int) -> tuple[Replica, ...]:
    return tuple(Replica(f"gateway-{number}", f"http://10.0.0.{number}:8082", 1) for number in range(count))


def names(count: int) -> Iterator[str]:
    return (f"function-{number}.openfaas-fn" for number in range(count))


@given(st.integers(1, 8), st.integers(0, 7))
@settings(max_examples=30, deadline=None)
def test_only_what_must_move_moves(count: int, gone: int) -> None:
    all_of_them = replicas(count + 1)
    left = all_of_them[: gone % (count + 1)] + all_of_them[gone % (count + 1) + 1 :]
    taken_out = all_of_them[gone % (count + 1)]
    for function in names(300):
        before, after = owner(function, all_of_them), owner(function, left)
        assert before in (after, taken_out)


@given(st.integers(2, 6))
@settings(max_examples=5, deadline=None)
def test_shares_are_even(count: int) -> None:
    shares = dict.fromkeys(replicas(count), 0)
    for function in names(3000):
        found = owner(function, replicas(count))
        assert found is not None
        shares[found] += 1
    # Six standard deviations of a binomial share.
    spread = 6 * (3000 * (1 / count) * (1 - 1 / count)) ** 0.5
    assert all(abs(share - 3000 / count) < spread for share in shares.values())
