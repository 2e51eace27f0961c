"""`gnomon serve --store redis://…` while Redis is suspended, killed, empty and back again: queries are answered all the time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.integration.serve.conftest import GNOMON, Serving, started
from tests.redis_process import RedisProcess, needs_redis
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(300), needs_redis]
TENSOR = {"name": "values", "shape": [1, 6], "datatype": "FP32", "data": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}
QUERIES = 20


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("one", "two"):
        module = torch.nn.Sequential(torch.nn.Linear(6, 4)).eval()
        files = capture(module, (torch.ones(2, 6),), Description(name, "1", "", {}, ("values",)))
        DirectoryRepository(folder).put(name, "1", files)
    return folder


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisProcess]:
    server = RedisProcess(tmp_path / "redis")
    yield server
    server.close()


def folder(parent: Path, name: str) -> Path:
    """The state folder of a gateway."""
    (parent / name).mkdir()
    return parent / name / "state"


def register(serving: Serving, model: str) -> None:
    answer = serving.call("PUT", f"/system/applications/rows/models/{model}", {"accuracy": 0.9})
    assert answer.status == 202, answer.data


def described(serving: Serving) -> dict[str, Any]:
    answer = serving.call("GET", "/system/applications/rows")
    assert answer.status == 200, answer.data
    document: dict[str, Any] = answer.json()
    return document


def models_measured(serving: Serving) -> list[str]:
    return sorted({variant["model"] for variant in described(serving)["variants"] if variant["state"] in ("active", "inactive")})


def assert_queries_are_answered(serving: Serving) -> None:
    begin_s = time.monotonic()
    for _ in range(QUERIES):
        answer = serving.call("POST", "/v2/models/rows/infer", {"inputs": [TENSOR], "parameters": {"accuracy": 0.8}})
        assert answer.status == 200, answer.data
    assert time.monotonic() - begin_s < QUERIES / 2, "queries wait for Redis, whose time limit is 1 s"


def store_up(serving: Serving) -> str:
    page = serving.call("GET", "/metrics").data.decode()
    (line,) = [line for line in page.splitlines() if line.startswith('gnomon_metadata_store_up{store="redis"}')]
    return line.split()[-1]


def test_queries_are_answered_while_redis_is_suspended_killed_empty_and_back(
    models: Path, tmp_path: Path, redis: RedisProcess
) -> None:
    options = ("--models", str(models), "--store", redis.url)
    with started(tmp_path / "state", *options) as serving:
        register(serving, "one")
        eventually(lambda: models_measured(serving) == ["one@1"])
        assert described(serving)["store"] == {"kind": "redis", "available": True, "unsent": 0}
        assert_queries_are_answered(serving)

        redis.suspend()
        eventually(lambda: not described(serving)["store"]["available"])
        assert_queries_are_answered(serving)
        assert store_up(serving) == "0.0"
        register(serving, "two")
        eventually(lambda: models_measured(serving) == ["one@1", "two@1"])
        shown = subprocess.run(
            [*GNOMON, "app", "describe", "rows", "-g", serving.url], capture_output=True, text=True, check=True, timeout=60
        )
        assert "The metadata store does not answer since" in shown.stderr
        assert "1 changes wait for it" in shown.stderr

        redis.resume()
        redis.kill()
        serving.kill()
        serving.start(*options)
        eventually(lambda: models_measured(serving) == ["one@1", "two@1"])
        assert_queries_are_answered(serving)
        assert not described(serving)["store"]["available"]

        redis.start()  # without its data
        eventually(lambda: described(serving)["store"] == {"kind": "redis", "available": True, "unsent": 0})
        assert store_up(serving) == "1.0"
        assert redis.client.hexists("gnomon:applications", "openfaas-fn/rows/two@1")
        assert_queries_are_answered(serving)


def test_models_that_another_gateway_registers_and_removes_are_followed(
    models: Path, tmp_path: Path, redis: RedisProcess
) -> None:
    options = ("--models", str(models), "--store", redis.url)
    with started(folder(tmp_path, "first"), *options) as first, started(folder(tmp_path, "second"), *options) as second:
        register(first, "one")
        register(second, "two")
        for serving in (first, second):
            eventually(lambda serving=serving: models_measured(serving) == ["one@1", "two@1"])
        assert first.call("DELETE", "/system/applications/rows/models/one").status == 202
        eventually(lambda: models_measured(second) == ["two@1"])
        assert_queries_are_answered(second)


def test_store_of_a_platform_without_applications_is_refused(tmp_path: Path) -> None:
    command = [*GNOMON, "serve", "--state", str(tmp_path), "--platform", "openfaas", "--store", "redis://127.0.0.1"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 1
    assert "the gateway on openfaas has none" in refused.stderr
    assert "built from the template gnomon-application" in refused.stderr
