"""A node without processes: its state machine, and instances that answer as the protocol says, or as a test wants."""

from collections.abc import Callable
from typing import Any

import pytest

from gnomon_coordinator.effects import Assign, Close, Connect, Descriptors, Effect, Fork, Kill, LogError, Notify, Send
from gnomon_coordinator.node_state import NodeState
from gnomon_coordinator.protocol import InstanceMessage, PairReport, Task
from gnomon_coordinator.table import Kind, Status
from gnomon_core.blocks import Block, Layers

LAYERS = Layers(
    "0" * 64,
    ("out",),
    tuple(
        Block(f"b{number}", number, number + 1, (f"v{number}",), (f"v{number + 1}" if number < 5 else "out",), (), 1, 1, True)  # noqa: FBT003
        for number in range(6)
    ),
    {**{f"v{number}": 10 for number in range(6)}, "out": 100},
)


def task(shadow: str = "s1", body: str = "b1", blocks: tuple[int, ...] = (1, 2), **fields: Any) -> Task:
    about = {"cores": 1, "cpus": (0,), "split": (0, 1), "max_batch": 4, **fields}
    return Task(shadow, body, "/p", "/w", "/l", "shared", blocks=blocks, **about)


class FakeNode:
    """Executes the state machine's effects at once; `now_s` moves only when told to."""

    def __init__(self, epoch: int = 1) -> None:
        self.state = NodeState(epoch)
        self.now_s = 100.0
        self.done: list[Effect] = []
        self.names: dict[str, str] = {}

    def status(self, instance_id: str) -> Status | None:
        """The status in the instance's row."""
        row = self.state.table.get(instance_id)
        return None if row is None else row.status

    # what happens

    def found(self, instance_id: str, kind: Kind) -> None:
        self.state.found(instance_id, kind, self.now_s)
        self._execute_effects()

    def body(self, instance_id: str = "b1", *pairs: PairReport) -> None:
        self.found(instance_id, Kind.BODY)
        self.say(instance_id, say="body", pairs=pairs)

    def empty(self, instance_id: str = "pool-0-1") -> None:
        self.found(instance_id, Kind.EMPTY)
        self.say(instance_id, say="empty")

    def gone(self, instance_id: str) -> None:
        self.state.gone(instance_id, self.now_s)
        self._execute_effects()

    def say(self, instance_id: str, *, epoch: int | None = None, **fields: Any) -> None:
        said = InstanceMessage(epoch=self.state.epoch if epoch is None else epoch, **fields)
        self.state.handle_message(instance_id, said, self.now_s)
        self._execute_effects()

    def create(self, request: Task | None = None, *, descriptors: bool = True) -> Descriptors | None:
        fds = Descriptors(()) if descriptors else None
        self.state.create(request or task(), LAYERS, fds, self.now_s)
        self._execute_effects()
        return fds

    def destroy(self, shadow: str = "s1") -> None:
        self.state.destroy(shadow, self.now_s)
        self._execute_effects()

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.state.tick(self.now_s)
        self._execute_effects()

    # what was done

    def _execute_effects(self) -> None:
        while effects := self.state.take():
            self.done += effects

    def sent(self, instance_id: str) -> list[str]:
        return [str(event.message["do"]) for event in self.done if isinstance(event, Send) and event.id == instance_id]

    def last_sent(self, instance_id: str) -> dict[str, Any]:
        return dict([instance for instance in self.done if isinstance(instance, Send) and instance.id == instance_id][-1].message)

    def events(self) -> list[str]:
        return [str(event.message["event"]) for event in self.done if isinstance(event, Notify)]

    def last_event(self, event: str) -> dict[str, Any]:
        return dict(
            [effect for effect in self.done if isinstance(effect, Notify) and effect.message["event"] == event][-1].message
        )

    def forks(self) -> list[str]:
        return [instance.id for instance in self.done if isinstance(instance, Fork)]

    def errors(self) -> list[str]:
        return [effect.text for effect in self.done if isinstance(effect, LogError)]

    def killed(self) -> list[str]:
        return [instance.id for instance in self.done if isinstance(instance, Kill)]

    def closed(self) -> list[str]:
        return [instance.id for instance in self.done if isinstance(instance, Close)]

    def assigned(self) -> list[tuple[str, str]]:
        return [(effect.container, effect.shadow) for effect in self.done if isinstance(effect, Assign)]

    def connected(self) -> list[Connect]:
        return [effect for effect in self.done if isinstance(effect, Connect)]

    def paired(self, request: Task | None = None) -> None:
        """A Body and its Shadow at work, from a container in the pool. The Body may have others."""
        request = request or task()
        if request.body not in self.state.table:
            self.body(request.body)
        self.empty(f"pool-0-{request.shadow}")
        self.create(request)
        self.registered(request)
        self.say(request.body, say="paired", shadow=request.shadow)

    def registered(self, request: Task | None = None, *, paired: bool = False) -> None:
        request = request or task()
        self.say(request.shadow, say="registered", shadow=request.shadow, body=request.body, blocks=request.blocks, paired=paired)


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def next_node() -> FakeNode:
    """The state machine after a restart: it knows nothing, and its epoch is higher."""
    return FakeNode(2)


@pytest.fixture(name="task")
def task_of() -> Callable[..., Task]:
    return task
