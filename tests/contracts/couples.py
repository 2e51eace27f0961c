"""A platform with a Body that serves: what its tests ask of it."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import InstanceRequest, Platform
from gnomon_core.pairs import Pair
from gnomon_core.wire import Frame, Kind, Member
from gnomon_profiler.extractor import Description, capture
from tests.platform_testing import Recorder, answers, send

BATCH = 4
SPLIT = (0, 1, 1, 2)
OTHER_SPLIT = (0, 0, 1, 1)


@dataclass
class Couple:
    """A platform that has a function with a ready Body, and short ways to ask it."""

    platform: Platform
    listener: Recorder
    spec: FunctionSpec
    body: Instance
    batches: int = field(default=0)

    async def shadow(self, blocks: tuple[int, ...] = (0,), split: tuple[int, ...] = SPLIT) -> Instance:
        """A Shadow that its Body works with."""
        shadow = await self.platform.create_shadow(self.body.id, Pair(1, blocks, split))
        await self.listener.until(lambda: any(shadow.id in body.shadows for body in self.pairs))
        return shadow

    async def ask(self) -> tuple[list[float], list[str]]:
        """The numbers answered to a batch that is always the same, and how its hand-overs ended."""
        signature = self.platform.signature(self.spec)
        assert signature is not None
        self.batches += 1
        generator = torch.Generator().manual_seed(7)
        rows = torch.randn((BATCH, *signature.inputs[0].shape), generator=generator)
        head = json.dumps({"kind": "tensors", "inputs": [tensor.to_json() for tensor in signature.inputs]}).encode()
        members = [Member(0, 1, b"", row.numpy().tobytes()) for row in rows]
        channel = await self.listener.channel(self.body.id)
        frame = await send(channel, Frame(Kind.BATCH, self.batches, 1, 20.0, head, members))
        assert frame is not None
        assert [status for status, _ in answers(frame)] == [200] * BATCH
        numbers = torch.frombuffer(bytearray(b"".join(body for _, body in answers(frame))), dtype=torch.float32)
        return numbers.tolist(), [hand_over["outcome"] for hand_over in frame.head_json().get("pair", [])]

    async def share(self, shadows: int = 1) -> tuple[list[float], list[str]]:
        """Answers and outcomes, asked for again while a busy machine makes the Shadow late: three times in a row end a pair."""
        for _ in range(50):
            numbers, outcomes = await self.ask()
            if outcomes == ["answered"] * shadows:
                break
        return numbers, outcomes

    def seen(self) -> dict[str, Instance]:
        return {instance.id: instance for instance in self.platform.instances(str(self.spec.key))}

    @property
    def pairs(self) -> list[Instance]:
        """The Body, each time as it was told when its pair changed."""
        return [body for body in self.listener.pairs if body.id == self.body.id]

    def order(self, *ids: str) -> list[tuple[str, str]]:
        """The events about these instances, in their order."""
        return [event for event in self.listener.order if event[1] in ids]


def near(numbers: list[float]) -> list[float]:
    """Return whether both hold the same numbers: kernels may sum in another order for another number of rows."""
    close: list[float] = pytest.approx(numbers, rel=1e-5, abs=1e-5)
    return close


def coordinator() -> int:
    """The process that looks after the pairs of the platform which this process has."""
    [found] = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_ours(entry.name)]
    return found


def is_ours(name: str) -> bool:
    try:
        stat = Path("/proc", name, "stat").read_text(encoding="utf-8")
        supervisor = stat.rpartition(")")[2].split()[1]
        owner = Path("/proc", supervisor, "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
    except OSError:
        return False
    return "(gnomon coord" in stat and owner == str(os.getpid())


def small_network() -> Mapping[str, bytes]:
    """A network of a few layer blocks, captured."""
    torch.manual_seed(0)
    first, second = torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3)
    module = torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.Flatten(), torch.nn.Linear(1152, 5))
    captured = capture(module.eval(), (torch.zeros(2, 3, 16, 16),), Description("small", "1"))
    assert len(json.loads(captured["layers.json"])["blocks"]) >= 2
    return captured


async def stop_ends_both(couple: Couple) -> None:
    shadow = await couple.shadow()
    await couple.platform.stop()
    assert couple.listener.times_gone[shadow.id] == couple.listener.times_gone[couple.body.id] == 1
    assert couple.seen() == {}


async def couple_on(platform: Platform, listener: Recorder, name: str) -> Couple:
    annotations = {"gnomon/model": "small@1", "gnomon/max-batch": str(BATCH)}
    spec = read_deployment({"service": name, "image": "gnomon/body", "annotations": annotations})
    platform.check(spec)
    await platform.prepare(spec)
    body = await platform.create(InstanceRequest(spec, 3, 1, None, {}))
    await listener.channel(body.id)
    return Couple(platform, listener, spec, listener.ready[body.id])
