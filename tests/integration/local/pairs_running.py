"""A local platform with one model, whose Bodies and Shadows a test makes, asks and kills."""

import asyncio
import json
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gnomon_core.fleet import Instance, InstanceKind
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, InstanceRequest, ModelRepository
from gnomon_core.pairs import Pair
from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.platform_testing import NothingBuilt, Recorder, answers, send
from tests.waiting import until

PAIR = Pair(1, (0, 1, 2), (0, 1, 1, 2))
PATIENCE_S = 20.0


class Listener(Recorder):
    """A Recorder that keeps what it is told of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[str, str | None]] = []

    def pair_changed(self, body: Instance) -> None:
        assert body.kind is InstanceKind.BODY
        assert (body.partner is None) == (body.pair is None)
        self.pairs.append((body.id, body.partner))
        self._changed.set()


@dataclass
class Running:
    """A platform with one model, whose answers are known."""

    platform: LocalPlatform
    events: Listener
    spec: FunctionSpec
    module: torch.nn.Module
    profiles: Path
    """Where its platform looks for what was measured."""
    numbers: int = 0
    wrong: list[str] = field(default_factory=list)

    async def body(self) -> Instance:
        instance = await self.platform.create(InstanceRequest(self.spec, 1, 1, None, {}))
        await self.events.channel(instance.id)
        return instance

    async def paired(self, body: Instance, pair: Pair = PAIR) -> Instance:
        shadow = await self.platform.create_shadow(body.id, pair)
        await self.events.until(lambda: (body.id, shadow.id) in self.events.pairs or shadow.id in self.events.gone, PATIENCE_S)
        assert shadow.id not in self.events.gone, self.events.gone[shadow.id]
        return self.seen(shadow.id)

    def seen(self, instance_id: str) -> Instance:
        [found] = [instance for instance in self.platform.instances("line.openfaas-fn") if instance.id == instance_id]
        return found

    def pid(self, shadow: Instance) -> int:
        pid = self.platform._pairs.shadows[shadow.id].pid
        assert pid is not None
        return pid

    async def ask(self, body: Instance, samples: int = 4) -> None:
        """Send a batch and compare its answer with the module's own."""
        self.numbers += 1
        channel: BatchChannel = self.events.channels[body.id]
        signature = self.platform.signature(self.spec)
        assert signature is not None
        given = torch.full((samples, 4, 12, 12), float(self.numbers % 17))
        head = json.dumps({"kind": "tensors", "inputs": [tensor.to_json() for tensor in signature.inputs]}).encode()
        member = Member(0, samples, b"", given.numpy().tobytes())
        frame = await send(channel, Frame(Kind.BATCH, self.numbers, 1, 10.0, head, [member]))
        [(status, data)] = answers(frame)
        assert status == 200, data
        with torch.inference_mode():
            expected = self.module(given)
        got = torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(expected.shape)
        assert torch.allclose(got, expected, atol=1e-5)

    def supervised(self, name: str) -> list[int]:
        """The supervisor's children of this name; none before it is there, or once it has gone."""
        supervisor = self.platform._supervisor
        try:
            children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text().split()
        except OSError:
            return []
        return [int(pid) for pid in children if comm(int(pid)) == name]

    async def containers(self) -> list[int]:
        """The pool's containers, when there have been as many for a while: a burst makes it keep more."""
        found: list[int] = []
        while not found or found != self.supervised("gnomon empty"):
            found = self.supervised("gnomon empty")
            await asyncio.sleep(0.5)
        return found

    async def coordinator(self) -> int:
        return (await until(lambda: self.supervised("gnomon coord")))[0]


def comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def shared_memory(pids: list[int]) -> list[str]:
    """The pairs' buffers that these processes have mapped or open."""
    found: list[str] = []
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            lines += [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        found += [f"{pid}: {line}" for line in lines if "memfd:" in line and "order" not in line]
    return found


async def begun(folder: Path, put: ModelRepository | None = None, served: ModelRepository | None = None) -> Running:
    """The platform, with the model in its repository, and the function prepared. Without others the repository is a folder."""
    put = put or DirectoryRepository(folder / "models")
    layers = [layer for _ in range(4) for layer in (torch.nn.Conv2d(4, 4, 3, padding=1), torch.nn.ReLU())]
    module = torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
    put.put("line", "1", capture(module, (torch.randn(2, 4, 12, 12),), Description("line", "1")))
    profiles, events = folder / "profiles", Listener()
    local = LocalPlatform(folder / "state", served or put, NothingBuilt(), cores=8, profiles=profiles)
    await local.start(events)
    spec = read_deployment(
        {"service": "line", "image": "gnomon/body", "annotations": {"gnomon/model": "line@1", "gnomon/max-batch": "8"}}
    )
    await local.prepare(spec)
    return Running(local, events, spec, module, profiles)
