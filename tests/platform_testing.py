"""Helpers for platform tests: a listener that records, and sources that hold nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gnomon_core.errors import not_found
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import BatchChannel, ModelEntry
from gnomon_core.wire import Frame, Kind, Member


class Recorder:
    """A `PlatformListener` that records events, and waits for them."""

    def __init__(self) -> None:
        self.ready: dict[str, Instance] = {}
        self.channels: dict[str, BatchChannel] = {}
        self.gone: dict[str, str] = {}
        self.times_gone: Counter[str] = Counter()
        self.lines: list[tuple[str, str]] = []
        self.pairs: list[Instance] = []
        """Bodies as reported by `pair_changed`."""
        self.found: dict[str, Instance] = {}
        """Shadows as reported by `shadow_found`."""
        self.order: list[tuple[str, str]] = []
        """All events with their instances, in order."""
        self._changed = asyncio.Event()

    def instance_ready(self, instance: Instance, channel: BatchChannel) -> None:
        self.ready[instance.id] = instance
        self.channels[instance.id] = channel
        self._changed.set()

    def instance_gone(self, instance_id: str, reason: str) -> None:
        self.gone[instance_id] = reason
        self.times_gone[instance_id] += 1
        self.order.append(("gone", instance_id))
        self._changed.set()

    def pair_changed(self, body: Instance) -> None:
        self.pairs.append(body)
        self.order.append(("alone" if body.pair is None else "paired", body.id))
        self._changed.set()

    def shadow_found(self, shadow: Instance) -> None:
        self.found[shadow.id] = shadow
        self.order.append(("found", shadow.id))
        self._changed.set()

    def log_line(self, function: FunctionKey, instance_id: str, text: str) -> None:
        del instance_id
        self.lines.append((str(function), text))
        self._changed.set()

    async def until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Return when the condition holds, which is checked after each event."""
        async with asyncio.timeout(timeout_s):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def channel(self, instance_id: str) -> BatchChannel:
        """Wait for an instance to be ready and return its channel; fails with the reason if the instance ends instead."""
        await self.until(lambda: instance_id in self.ready or instance_id in self.gone)
        assert instance_id in self.ready, self.gone[instance_id]
        return self.channels[instance_id]

    async def reason(self, instance_id: str) -> str:
        """Wait for an instance to end and return the reason."""
        await self.until(lambda: instance_id in self.gone)
        return self.gone[instance_id]


class NoModels:
    """An empty `ModelRepository`."""

    def get(self, reference: str) -> ModelEntry:
        raise not_found("model_not_found", f"There is no model {reference!r}.", "The repository is empty.")

    def get_blocks(self, reference: str, blocks: Iterable[int]) -> ModelEntry:
        del blocks
        return self.get(reference)

    def put(self, name: str, version: str, files: Mapping[str, bytes]) -> ModelEntry:
        raise NotImplementedError

    def put_files(self, name: str, version: str, files: Mapping[str, Path]) -> ModelEntry:
        raise NotImplementedError

    def list(self) -> Iterable[ModelEntry]:
        return ()

    def verify(self, reference: str) -> bool:
        del reference
        return False


class NothingBuilt:
    """Built images of which there are none: `resolve` finds no image."""

    def resolve(self, image: str) -> None:
        del image


def request_frame(*bodies: bytes, batch_id: int = 1, epoch: int = 1, meta: bytes = b"POST\n/\n\n") -> Frame:
    """A BATCH of HTTP requests."""
    return Frame(Kind.BATCH, batch_id, epoch, 30.0, members=[Member(0, 1, meta, body) for body in bodies])


def send(channel: BatchChannel, frame: Frame, stream: Callable[[Frame], None] | None = None) -> asyncio.Future[Frame | None]:
    """Run a batch. The future gets what `done` gets, and an exception if it is called twice."""
    answer: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()
    channel.run(frame, answer.set_result, stream)
    return answer


def answers(frame: Frame | None) -> Sequence[tuple[int, bytes]]:
    """Status and body of each member of a result."""
    assert frame is not None, "the instance was lost"
    return [(member.code, bytes(member.body)) for member in frame.members]
