"""Models in a bucket, on the local platform: fetched once, beside the event loop, and mapped by Bodies and Shadows alike."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_platforms.aws_lambda.testing.account import Account
from gnomon_profiler.s3 import S3Repository
from gnomon_server.machine import ModelFetcher
from tests.contracts.small_models import two_blocks
from tests.integration.local.pairs_running import Running, begun

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


class Bucket:
    """A bucket, what was fetched from it (manifests left out), and by which threads it was asked."""

    def __init__(self, aws: Account, folder: Path) -> None:
        self._client, self._name, self._folder = aws.client("s3"), aws.bucket, folder
        self.fetched: list[str] = []
        self.threads: set[int] = set()
        self._client.meta.events.register("before-parameter-build.s3", self._sees)

    def repository(self, machine: str) -> S3Repository:
        """As this machine has it."""
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


async def test_the_loop_waits_for_no_bucket(running: Running, bucket: Bucket) -> None:
    bucket.forget()
    await running.platform.prepare(running.spec)
    await running.body()
    assert bucket.threads
    assert threading.get_ident() not in bucket.threads


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
