"""A running local platform, and short ways to deploy on it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, InstanceRequest
from gnomon_platforms.images import BuiltHandler
from gnomon_platforms.local.platform import LocalPlatform
from tests.platform_testing import NoModels, Recorder, answers, request_frame, send


@dataclass
class Images:
    """The images that were built on this machine."""

    built: dict[str, BuiltHandler] = field(default_factory=dict)

    def resolve(self, image: str) -> BuiltHandler | None:
        return self.built.get(image)


@dataclass
class Running:
    """A platform and what it has told."""

    platform: LocalPlatform
    events: Recorder
    state: Path
    images: Images

    async def begin(
        self, name: str, process: str = "sh", *, secrets: Mapping[str, bytes] | None = None, **fields: object
    ) -> Instance:
        """Start an instance of a function and return when it is ready."""
        return await self.begin_spec(spec(name, process, **fields), secrets)

    async def begin_spec(self, spec: FunctionSpec, secrets: Mapping[str, bytes] | None = None, cores: int = 1) -> Instance:
        instance = await self.platform.create(InstanceRequest(spec, 1, cores, None, secrets or {}))
        await self.events.channel(instance.id)
        return instance

    def channel(self, instance: Instance) -> BatchChannel:
        return self.events.channels[instance.id]

    async def ask(self, instance: Instance, text: str) -> str:
        """Send a body and return the answer's, whatever its status."""
        [(_, body)] = answers(await send(self.channel(instance), request_frame(text.encode())))
        return body.decode()


def spec(name: str, process: str = "sh", **fields: object) -> FunctionSpec:
    document = {"service": name, "image": "functions/alpine", "envProcess": process}
    return read_deployment({**document, **fields})


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    state, images, events = tmp_path / "state", Images(), Recorder()
    platform = LocalPlatform(state, NoModels(), images, cores=16, preload_torch=False)
    state.chmod(0o700)
    await platform.start(events)
    yield Running(platform, events, state, images)
    await platform.stop()
