"""Models and plans on Lambda."""

import json
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from gnomon_cli.main import gnomon
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import BatchChannel, InstanceRequest, Platform
from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.aws_lambda.testing.account import IMAGE, Account
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository
from tests.platform_testing import NothingBuilt, Recorder, answers, send

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]
SIDE = 64
PLANES = (3, SIDE, SIDE)
Start = Callable[..., Awaitable[Any]]


class Plane(torch.nn.Module):
    """A model whose output is as large as its input: a batch sent through S3 comes back through S3."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.relu(x) * 2


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> DirectoryRepository:
    made = DirectoryRepository(tmp_path_factory.mktemp("models"))
    with torch.random.fork_rng():
        torch.manual_seed(3)
        layers = [
            torch.nn.Conv2d(3, 8, 3),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(8, 5),
        ]
        net = torch.nn.Sequential(*layers).eval()
    made.put("net", "1", capture(net, (torch.ones(2, *PLANES),), Description("net", "1")))
    made.put("plane", "1", capture(Plane().eval(), (torch.ones(2, 3, 256, 256),), Description("plane", "1")))
    return made


@pytest.fixture
async def local(repository: DirectoryRepository, tmp_path: Path) -> AsyncIterator[tuple[LocalPlatform, Recorder]]:
    platform, events = LocalPlatform(tmp_path / "state", repository, NothingBuilt()), Recorder()
    await platform.start(events)
    yield platform, events
    await platform.stop()


def model(name: str) -> FunctionSpec:
    return read_deployment({"service": name, "image": "gnomon/body", "annotations": {"gnomon/model": f"{name}@1"}})


async def channel_to(platform: Platform, events: Recorder, spec: FunctionSpec) -> BatchChannel:
    return await events.channel((await platform.create(InstanceRequest(spec, 1, 1, None, {}))).id)


def batch(platform: Platform, spec: FunctionSpec, bodies: list[bytes], budget_s: float = 60.0) -> Frame:
    signature = platform.signature(spec)
    assert signature is not None
    head = json.dumps({"kind": "tensors", "inputs": [tensor.to_json() for tensor in signature.inputs]}).encode()
    return Frame(Kind.BATCH, 1, 1, budget_s, head, [Member(0, 1, b"", body) for body in bodies])


async def test_a_batch_of_eight_answers_as_here_and_one_bad_member_harms_nobody(
    on_lambda: Start, local: tuple[LocalPlatform, Recorder], repository: DirectoryRepository
) -> None:
    there, spec = await on_lambda(repository=repository), model("net")
    rng = random.Random(5)
    bodies = [struct.pack(f"<{3 * SIDE * SIDE}f", *(rng.gauss(0, 1) for _ in range(3 * SIDE * SIDE))) for _ in range(8)]
    bodies[5] = bodies[5][:-4]

    _, channel = await there.begin(spec)
    remote = answers(await send(channel, batch(there.platform, spec, bodies)))
    here = answers(await send(await channel_to(*local, spec), batch(local[0], spec, bodies)))

    assert [status for status, _ in remote] == [200, 200, 200, 200, 200, 400, 200, 200]
    assert remote == here
    assert b"wrong_size" in remote[5][1]
    usage = there.platform.usage("net.openfaas-fn")
    assert usage.cpu_s > 0
    assert usage.memory_bytes > 50 * 2**20
    assert usage.cost > 2 * 2e-7, "two Invokes, the first of which found no sandbox, and their time"


async def test_seven_megabytes_there_and_back_go_through_the_bucket_and_leave_nothing(
    on_lambda: Start, repository: DirectoryRepository
) -> None:
    there, spec = await on_lambda(repository=repository), model("plane")
    _, channel = await there.begin(spec)
    values = 3 * 256 * 256
    bodies = [struct.pack("<f", number) * values for number in range(9)]
    assert sum(map(len, bodies)) > 7_000_000
    result = answers(await send(channel, batch(there.platform, spec, bodies)))
    assert result == [(200, struct.pack("<f", 2 * number) * values) for number in range(9)]
    # The model's own files stay, for the next sandbox.
    await there.platform.stop()
    left = there.aws.left()
    assert all("/models/" in key for key in left)
    assert len(left) == 3


async def test_a_bucket_that_has_gone_is_the_reason_and_nobody_waits(on_lambda: Start, repository: DirectoryRepository) -> None:
    there = await on_lambda(repository=repository)
    there.aws.client("s3").delete_bucket(Bucket=there.aws.bucket)
    instance = await there.platform.create(InstanceRequest(model("net"), 1, 1, None, {}))
    reason = await there.events.reason(instance.id)
    assert "could not be started: AWS refused to write models to the bucket" in reason


async def test_a_file_that_is_not_the_model_s_is_never_run(on_lambda: Start, repository: DirectoryRepository) -> None:
    there, spec = await on_lambda(repository=repository), model("net")
    entry = repository.get("net@1")
    key = f"gnomon/models/{entry.sha256['weights.safetensors']}"
    there.aws.client("s3").put_object(Bucket=there.aws.bucket, Key=key, Body=b"\0" * entry.weights.stat().st_size)
    instance = await there.platform.create(InstanceRequest(spec, 1, 1, None, {}))
    reason = await there.events.reason(instance.id)
    assert "could not be started" in reason
    assert "does not have the SHA-256" in reason


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    files = capture(torch.nn.Linear(4, 2).eval(), (torch.ones(2, 4),), Description("line", "1"))
    DirectoryRepository(folder).put("line", "1", files)
    return folder


def run(aws: Account, models: Path, *more: str, answer: str | None = None) -> tuple[int, str]:
    account = ["--lambda-role", aws.role, "--lambda-bucket", aws.bucket, "--lambda-image", IMAGE]
    result = CliRunner().invoke(
        gnomon, ["lambda-profile", "line", "--models", str(models), *account, "--repeats", "3", *more], input=answer
    )
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_profiling_asks_before_it_spends_and_resumes(aws: Account, models: Path) -> None:
    wanted = ("--memory", "1769,3538", "--batches", "1,4")
    code, text = run(aws, models, *wanted, answer="n\n")
    assert code == 1
    assert "Expected cost: $" in text
    assert aws.service.calls == []

    code, text = run(aws, models, "--memory", "1769", "--batches", "1,4", "--yes")
    assert code == 0, text
    assert "2/2  1769 MB, batch 4" in text
    asked = len(aws.service.calls)
    assert asked == 1 + 2 * 3, "one to begin a sandbox, three for each cell"

    code, text = run(aws, models, *wanted, "--yes", "--json")
    assert code == 0, text
    assert "2 of 4 cells to measure, 6 Invokes" in text
    assert len(aws.service.calls) - asked == 1 + 2 * 3

    path = models / "profiles" / "line@1" / "lambda" / "us-east-1.json"
    document = json.loads(path.read_text())
    assert document["format"] == "gnomon-service-times/1"
    assert [(row["memory_mb"], row["batch"]) for row in document["measured"]] == [(1769, 1), (1769, 4), (3538, 1), (3538, 4)]
    assert all(0 < row["ms"] < 5000 for row in document["measured"])
    assert all(len(cell["runs_s"]) == 3 for cell in document["cells"])
    assert document["cost"] > 14 * 2e-7
    assert document["cloudwatch"]["invocations"] == 0, "moto counts none"
    assert aws.functions() == []


@pytest.mark.parametrize("more", [(), ("--lambda-concurrency", "1")], ids=["side by side", "one at a time"])
def test_from_nothing_one_memory_size_follows_the_other(aws: Account, models: Path, more: tuple[str, ...]) -> None:
    code, text = run(aws, models, "--memory", "1769,3538", "--batches", "1", "--yes", *more)
    assert code == 0, text
    assert "1/2  1769 MB, batch 1" in text
    assert "2/2  3538 MB, batch 1" in text
    assert len(aws.service.calls) == 2 * (1 + 3)
    assert aws.functions() == []


def test_without_a_role_it_says_which_option_is_missing(models: Path) -> None:
    result = CliRunner().invoke(gnomon, ["lambda-profile", "line", "--models", str(models)], env={"GNOMON_LAMBDA_ROLE": ""})
    assert "--lambda-role" in str(result.exception)
