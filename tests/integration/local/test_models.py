"""A layer program on the real platform: forked from the zygote with torch, pinned, answering tensors."""

import json
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from gnomon_core.fleet import InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_platforms.testing import NothingBuilt, Recorder, answers, send
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository

pytestmark = pytest.mark.torch


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[tuple[LocalPlatform, Recorder]]:
    state = tmp_path / "state"
    repository = DirectoryRepository(state / "models")
    module = torch.nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[2.0, 3.0]]))
        module.bias.zero_()
    repository.put("line", "1", capture(module.eval(), (torch.ones(2, 2),), Description("line", "1")))
    platform, events = LocalPlatform(state, repository, NothingBuilt()), Recorder()
    await platform.start(events)
    yield platform, events
    await platform.stop()


async def test_a_model_starts_from_the_warm_zygote_and_answers(started: tuple[LocalPlatform, Recorder]) -> None:
    platform, events = started
    spec = read_deployment({"service": "line", "image": "gnomon/body", "annotations": {"gnomon/model": "line@1"}})
    platform.check(spec)
    signature = platform.signature(spec)
    assert signature is not None
    await platform.prepare(spec)
    instance = await platform.create(InstanceRequest(spec, 1, 1, None, {}))
    channel = await events.channel(instance.id)
    assert platform.instances("line.openfaas-fn")[0].state is InstanceState.READY
    head = json.dumps({"kind": "tensors", "inputs": [spec.to_json() for spec in signature.inputs]}).encode()
    members = [Member(0, 1, b"", struct.pack("<2f", 1, 10)), Member(0, 2, b"", struct.pack("<4f", 1, 0, 0, 1))]
    result = answers(await send(channel, Frame(Kind.BATCH, 1, 1, 10.0, head, members)))
    assert result == [(200, struct.pack("<f", 32)), (200, struct.pack("<2f", 2, 3))]
