"""A layer program on the local platform: forked from the zygote with torch, and models in a bucket, fetched once."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gnomon_core.fleet import InstanceState
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.aws_lambda.testing.account import Account
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from gnomon_profiler.s3 import S3Repository
from gnomon_server.machine import ModelFetcher
from tests.contracts.small_models import two_blocks
from tests.integration.local.pairs_running import Running, begun
from tests.platform_testing import NothingBuilt, Recorder, answers, send

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


class Bucket:
    """A bucket, what was fetched from it (manifests left out), and by which threads it was asked."""

    def __init__(self, aws: Account, folder: Path) -> None:
        self._client, self._name, self._folder = aws.client("s3"), aws.bucket, folder
        self.fetched: list[str] = []
        self.threads: set[int] = set()
        self._client.meta.events.register("before-parameter-build.s3", self._sees)

    def repository(self, machine: str) -> S3Repository:
        """The repository as a machine has it."""
        return S3Repository(self._name, "models", self._folder / machine, self._client)

    def _sees(self, params: dict[str, Any], **_: Any) -> None:
        self.threads.add(threading.get_ident())
        if "/objects/" in params.get("Key", ""):
            self.fetched.append(params["Key"])

    def forget(self) -> None:
        self.fetched.clear()
        self.threads.clear()


@pytest.fixture
def bucket(aws: Account, tmp_path: Path) -> Bucket:
    return Bucket(aws, tmp_path / "fetched")


@pytest.fixture
async def running(bucket: Bucket, tmp_path: Path) -> AsyncIterator[Running]:
    made = await begun(tmp_path, bucket.repository("elsewhere"), bucket.repository("here"))
    yield made
    await made.platform.stop()


@pytest.mark.timeout(180)
async def test_a_shadow_maps_what_its_body_has_fetched(running: Running, bucket: Bucket) -> None:
    bucket.forget()
    body = await running.body()
    shadow = await running.paired(body)
    await running.ask(body)
    assert bucket.fetched == [], "it came with the deployment, and is here"
    pid = running.platform._instances[body.id].pid
    assert pid is not None
    assert weights_of(pid) == weights_of(running.pid(shadow)) != set()


def weights_of(pid: int) -> set[str]:
    """The files of the model that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {line.split()[4] for line in lines if "/objects/" in line}


@pytest.mark.timeout(180)
async def test_the_loop_waits_for_no_bucket(running: Running, bucket: Bucket) -> None:
    bucket.forget()
    await running.platform.prepare(running.spec)
    await running.body()
    assert bucket.threads
    assert threading.get_ident() not in bucket.threads


@pytest.mark.timeout(180)
async def test_a_model_of_ones_own_is_brought_here_before_it_is_looked_at(bucket: Bucket) -> None:
    bucket.repository("elsewhere").put("mine", "1", two_blocks()[0])
    bucket.forget()
    here = bucket.repository("here")
    await ModelFetcher(here).fetch("mine@1")
    assert len(bucket.fetched) == len(two_blocks()[0])
    assert threading.get_ident() not in bucket.threads
    bucket.forget()
    here.get("mine@1")
    assert bucket.fetched == []
