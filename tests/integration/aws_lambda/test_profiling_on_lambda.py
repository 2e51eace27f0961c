"""`gnomon lambda-profile`: the cost first, every cell kept, nothing measured twice, nothing left behind."""

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from gnomon_cli.main import gnomon
from gnomon_platforms.aws_lambda.testing.account import IMAGE, Account
from gnomon_profiler.extractor import Description, capture
from gnomon_profiler.repository import DirectoryRepository

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


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


def test_it_asks_before_it_spends_and_goes_on_where_it_stopped(aws: Account, models: Path) -> None:
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
    assert [(one["memory_mb"], one["batch"]) for one in document["measured"]] == [(1769, 1), (1769, 4), (3538, 1), (3538, 4)]
    assert all(0 < one["ms"] < 5000 for one in document["measured"])
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
