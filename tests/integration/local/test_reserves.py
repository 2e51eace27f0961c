"""A node's two reserves, with real Bodies and Shadows (AsyFunc, section 3.4): the held core, and the empty container.

Who has the core when, on a full node:

3 cores, 1 of them held for Shadows     free for policies / reserve
two Bodies                              0 / 1
… and a Shadow                          0 / 0     a third Body is refused
the Shadow has ended                    0 / 1
the third Body                          0 / 0     it has the reserve, and a Shadow is refused
it has ended                            0 / 1     a Shadow is made again
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.pairs import Pair
from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.common import MODEL_OVERHEAD_BYTES
from gnomon_platforms.local.pairs import CONTAINER_BYTES
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.platform_testing import NothingBuilt, Recorder, answers, send
from tests.waiting import until

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]
PAIR = Pair(1, (0,), (0, 1, 1, 2))
PATIENCE_S = 30.0


class Listener(Recorder):
    """Knows who works with whom."""

    def __init__(self) -> None:
        super().__init__()
        self.partners: dict[str, str | None] = {}

    def pair_changed(self, body: Instance) -> None:
        self.partners[body.id] = body.partner
        self._changed.set()


class Full:
    """The node, and short ways to fill it."""

    def __init__(self, platform: LocalPlatform, events: Listener, spec: FunctionSpec) -> None:
        self.platform, self.events, self.spec = platform, events, spec

    @property
    def cores(self) -> tuple[float, float]:
        """Free for policies, and in reserve."""
        return self.platform.nodes()[0].free_cores, self.platform._node.reserve_cores

    @property
    def claimed_bytes(self) -> int:
        node = self.platform.nodes()[0]
        return node.memory_bytes - node.free_memory_bytes

    async def body(self) -> Instance:
        instance = await self.platform.create(InstanceRequest(self.spec, 1, 1, None, {}))
        await self.events.channel(instance.id)
        return instance

    async def shadow(self, body: Instance) -> Instance:
        shadow = await self.platform.create_shadow(body.id, PAIR)
        await self.events.until(
            lambda: self.events.partners.get(body.id) == shadow.id or shadow.id in self.events.gone, PATIENCE_S
        )
        assert shadow.id not in self.events.gone, self.events.gone[shadow.id]
        return shadow

    async def container(self) -> int:
        """The process of the pool's container, once it has rehearsed."""
        found: list[int] = []

        def there() -> bool:
            found[:] = named_below(self.platform._supervisor.pid, "gnomon empty")
            return bool(found)

        await until(there)
        return found[0]

    async def end(self, instance: Instance) -> None:
        await self.platform.destroy(instance.id)
        await self.events.reason(instance.id)

    async def status_of_a_batch(self, body: Instance) -> int:
        signature = self.platform.signature(self.spec)
        assert signature is not None
        head = json.dumps({"kind": "tensors", "inputs": [tensor.to_json() for tensor in signature.inputs]}).encode()
        member = Member(0, 4, b"", torch.ones(4, 4, 8, 8).numpy().tobytes())
        frame = await send(self.events.channels[body.id], Frame(Kind.BATCH, 1, 1, 10.0, head, [member]))
        return answers(frame)[0][0]


def named_below(parent: int, name: str) -> list[int]:
    """A process's children of this name."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == name]


def groups(pid: int) -> str:
    """The control groups of a process."""
    return Path(f"/proc/{pid}/cgroup").read_text()


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[Full]:
    repository = DirectoryRepository(tmp_path / "models")
    module = torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3)).eval()
    repository.put("small", "1", capture(module, (torch.randn(2, 4, 8, 8),), Description("small", "1")))
    platform, events = LocalPlatform(tmp_path / "state", repository, NothingBuilt(), cores=3, reserved_cores=1.0), Listener()
    await platform.start(events)
    document = {"service": "small", "image": "gnomon/body", "annotations": {"gnomon/model": "small@1"}, "requests": {"cpu": "1"}}
    yield Full(platform, events, read_deployment(document))
    await platform.stop()


async def test_a_body_on_a_full_node_gets_the_reserve_and_gives_it_back(full: Full) -> None:
    first, _ = await full.body(), await full.body()
    assert full.cores == (0, 1)
    shadow = await full.shadow(first)
    assert full.cores == (0, 0)
    with pytest.raises(GnomonError, match="cores"):
        await full.body()
    await full.end(shadow)
    assert full.cores == (0, 1)

    third = await full.body()
    assert full.cores == (0, 0)
    assert await full.status_of_a_batch(third) == 200
    with pytest.raises(GnomonError, match="cores"):
        await full.shadow(first)
    await full.end(third)
    assert full.cores == (0, 1)
    await full.shadow(first)
    assert await full.status_of_a_batch(first) == 200


async def test_a_container_is_counted_until_it_is_a_shadow_and_that_is_in_its_own_group(full: Full) -> None:
    body = await full.body()
    container = await full.container()
    await until(lambda: full.claimed_bytes == body.memory_bytes + CONTAINER_BYTES)

    shadow = await full.shadow(body)
    assert shadow.memory_bytes == MODEL_OVERHEAD_BYTES, "its Body holds the weights that they share"
    assert full.platform._pairs.shadows[shadow.id].pid == container
    await until(lambda: full.claimed_bytes == body.memory_bytes + shadow.memory_bytes + CONTAINER_BYTES)
    if full.platform._join(shadow.id, InstanceRequest(full.spec, 1, 1, None, {})):
        assert shadow.id in groups(container)
