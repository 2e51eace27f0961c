"""Failures of Lambda and of the bucket for large batches, and the outcome of the batches that they hit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from gnomon_core import wire as results
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.wire import Frame
from gnomon_platforms.aws_lambda.resources import LambdaOptions
from gnomon_platforms.aws_lambda.s3_transfer import S3Transfer
from gnomon_platforms.aws_lambda.testing.account import Account, BuiltFolder
from gnomon_platforms.aws_lambda.testing.service import Refusal
from tests.platform_testing import answers, request_frame, send

Start = Callable[..., Awaitable[Any]]
Spec = Callable[..., FunctionSpec]


def within(frame: Frame, budget_s: float) -> Frame:
    frame.budget_s = budget_s
    return frame


def invokes(aws: Account) -> int:
    return len(aws.service.calls)


@pytest.fixture
def handler(tmp_path: Path) -> BuiltFolder:
    """Counts its calls in a file, so that one that ran twice shows."""
    folder = tmp_path / "handler"
    folder.mkdir()
    (folder / "handler.py").write_text(f"""
import os, pathlib, time
LOG = pathlib.Path({str(tmp_path / "ran")!r})
def handle(event, context):
    with LOG.open("a") as log:
        log.write(event.body.decode() + "\\n")
    if event.body == b"crash":
        os._exit(9)
    if event.body == b"hang":
        time.sleep(60)
    while event.body == b"together" and LOG.read_text().count("together") < 4:
        time.sleep(0.01)
    if event.body == b"large":
        return "x" * 5_000_000
    return event.body
""")
    return BuiltFolder(folder)


def built(**fields: Any) -> FunctionSpec:
    return read_deployment({"service": "handle", "image": "built/handle:1", **fields})


def ran(tmp_path: Path) -> list[str]:
    return (tmp_path / "ran").read_text().split()


async def test_a_throttled_batch_waits_its_turn_and_runs_once(on_lambda: Start, handler: BuiltFolder, tmp_path: Path) -> None:
    there = await on_lambda(built=handler)
    _, channel = await there.begin(built())
    before = invokes(there.aws)
    there.aws.service.throttle(3)
    assert answers(await send(channel, request_frame(b"once"))) == [(200, b"once")]
    assert invokes(there.aws) - before == 4
    assert ran(tmp_path) == ["once"]


async def test_throttled_until_its_time_is_over_each_member_gets_503_and_the_slot_stays(
    on_lambda: Start, echo_spec: Spec
) -> None:
    there = await on_lambda()
    _, channel = await there.begin(echo_spec())
    there.aws.service.throttle(1000)
    frame = await send(channel, within(request_frame(b"a", b"b"), 1.0))
    result = answers(frame)
    assert [status for status, _ in result] == [503, 503]
    assert b"lambda_throttled" in result[0][1]
    assert frame is not None
    assert b"Retry-After: 5" in frame.members[0].meta.split(b"\n")
    assert {type(member) for member in frame.members} == {results.Refusal}, "it is no answer of the function"
    assert there.events.gone == {}


@pytest.mark.parametrize(
    ("refusal", "again"),
    [
        (Refusal(500, "ServiceException"), False),
        (Refusal(502, "BadGateway"), False),
        (Refusal(502, "EC2ThrottledException"), True),
        (Refusal(409, "ResourceConflictException"), True),
    ],
)
async def test_only_what_lambda_says_it_did_not_begin_is_sent_again(
    on_lambda: Start, echo_spec: Spec, refusal: Refusal, *, again: bool
) -> None:
    there = await on_lambda()
    instance, channel = await there.begin(echo_spec())
    before = invokes(there.aws)
    there.aws.service.fail(1, refusal)
    result = await send(channel, request_frame(b"x"))
    if again:
        assert answers(result) == [(200, b"x")]
        return
    assert result is None
    assert not channel.unread, "it may have run"
    assert invokes(there.aws) - before == 1
    assert refusal.code in await there.events.reason(instance.id)


async def test_a_crash_loses_its_own_batch_once_and_the_next_slot_serves(
    on_lambda: Start, handler: BuiltFolder, tmp_path: Path
) -> None:
    there = await on_lambda(built=handler)
    instance, channel = await there.begin(built())
    _, other = await there.begin(built())
    assert await send(channel, request_frame(b"crash")) is None
    assert not channel.unread
    assert "exit status 9" in await there.events.reason(instance.id)
    assert answers(await send(other, request_frame(b"fine"))) == [(200, b"fine")]
    assert ran(tmp_path) == ["crash", "fine"]


async def test_a_function_that_overruns_is_ended_by_lambda_and_its_batch_is_lost(
    on_lambda: Start, handler: BuiltFolder, tmp_path: Path
) -> None:
    there = await on_lambda(built=handler)
    spec = built(annotations={"gnomon/deadline-ms": "1000"})
    instance, channel = await there.begin(spec)
    assert await send(channel, within(request_frame(b"hang"), 1.0)) is None
    # Lambda's own timeout is a second above the deadline.
    assert "timed out after 2.00 seconds" in await there.events.reason(instance.id)
    assert ran(tmp_path) == ["hang"]


async def test_wait_for_an_answer_ends_at_the_batch_limit(on_lambda: Start, handler: BuiltFolder) -> None:
    there = await on_lambda(built=handler)
    instance, channel = await there.begin(built())
    assert await send(channel, within(request_frame(b"hang"), 1.0)) is None
    assert not channel.unread
    assert "no answer within 3.0 s" in await there.events.reason(instance.id)
    there.aws.service.sandboxes[-1].process.kill()


async def test_without_a_bucket_what_is_too_large_is_refused_and_the_slot_stays(
    on_lambda: Start, handler: BuiltFolder, aws: Account
) -> None:
    there = await on_lambda(aws.options(bucket=False), built=handler)
    _, channel = await there.begin(built())
    for body in (b"x" * 5_000_000, b"large"):
        [(status, text)] = answers(await send(channel, request_frame(body)))
        assert status == 413
        assert b"--lambda-bucket" in text
    assert answers(await send(channel, request_frame(b"small"))) == [(200, b"small")]


async def test_connections_that_are_refused_are_tried_again(
    on_lambda: Start, echo_spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", "http://127.0.0.1:9")
    there = await on_lambda()
    instance = await there.platform.create(InstanceRequest(echo_spec(), 1, 1, None, {}))
    assert "AWS cannot be reached" in await there.events.reason(instance.id)


async def test_batches_of_many_slots_run_side_by_side(on_lambda: Start, handler: BuiltFolder) -> None:
    there = await on_lambda(built=handler)
    channels = [(await there.begin(built()))[1] for _ in range(4)]
    # Each ends when the fourth has begun.
    results = await asyncio.gather(*(send(channel, request_frame(b"together")) for channel in channels))
    assert [answers(result) for result in results] == [[(200, b"together")]] * 4


async def test_another_memory_size_is_another_version_and_old_slots_keep_theirs(on_lambda: Start, echo_spec: Spec) -> None:
    there = await on_lambda()
    spec = echo_spec("printenv AWS_LAMBDA_FUNCTION_MEMORY_SIZE")
    instance, channel = await there.begin(spec)
    larger, other = await there.begin(spec, cores=2)
    assert answers(await send(channel, request_frame(b""))) == [(200, b"1769\n")]
    assert answers(await send(other, request_frame(b""))) == [(200, b"3538\n")]
    assert larger.memory_bytes == 3538 * 2**20
    await there.platform.resize(instance.id, 3)
    assert answers(await send(channel, request_frame(b""))) == [(200, b"5307\n")]
    exact = echo_spec("printenv AWS_LAMBDA_FUNCTION_MEMORY_SIZE", annotations={"gnomon/memory-mb": "900"})
    _, small = await there.begin(exact, version=2)
    assert answers(await send(small, request_frame(b""))) == [(200, b"900\n")]
    assert there.aws.functions().count("gnomon-echo-openfaas-fn-zip") == 1


async def test_resources_of_a_dead_gateway_are_adopted_and_updated(on_lambda: Start, echo_spec: Spec, aws: Account) -> None:
    first = await on_lambda()
    await first.begin(echo_spec("echo first"))
    second = await on_lambda()
    _, channel = await second.begin(echo_spec("echo second"))
    assert answers(await send(channel, request_frame(b""))) == [(200, b"second\n")]
    assert aws.functions() == ["gnomon-echo-openfaas-fn-zip"]


async def test_a_handler_that_cannot_be_loaded_says_why(on_lambda: Start, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / "handler.py").write_text("import nothing_like_that\n")
    there = await on_lambda(built=BuiltFolder(folder))
    instance = await there.platform.create(InstanceRequest(built(), 1, 1, None, {}))
    assert "No module named 'nothing_like_that'" in await there.events.reason(instance.id)


async def test_credentials_that_are_missing_are_one_clear_line(on_lambda: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(GnomonError) as refused:
        await on_lambda()
    assert refused.value.code == "aws_credentials"
    assert "aws configure" in str(refused.value)
    assert "\n" not in str(refused.value)


async def test_a_region_that_is_missing_is_one_clear_line(on_lambda: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(GnomonError) as refused:
        await on_lambda()
    assert refused.value.code == "aws_region"


async def test_a_bucket_that_is_not_there_is_refused_at_the_start(on_lambda: Start, aws: Account) -> None:
    with pytest.raises(GnomonError, match="aws s3 mb s3://nowhere-at-all"):
        await on_lambda(LambdaOptions(aws.role, "nowhere-at-all"))


async def test_a_role_that_does_not_exist_is_named(on_lambda: Start, echo_spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnomon_platforms.aws_lambda.functions.ROLE_RETRY_S", 0.1)
    there = await on_lambda(LambdaOptions("arn:aws:iam::123456789012:role/nobody"))
    instance = await there.platform.create(InstanceRequest(echo_spec(), 1, 1, None, {}))
    reason = await there.events.reason(instance.id)
    assert "Check --lambda-role" in reason
    assert "trust-policy.json" in reason


async def test_secrets_are_refused_with_where_to_keep_them(on_lambda: Start) -> None:
    there = await on_lambda()
    with pytest.raises(GnomonError, match="AWS Secrets Manager"):
        there.platform.check(built(secrets=["key"]))


LARGE_BYTES = 5_000_000


class LateDeletions:
    """Holds what is to be deleted in the bucket until a later batch lies there, as four busy threads and a slow S3 do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._let_go = threading.Event()
        self._deleted = threading.Event()
        remove = S3Transfer.remove

        def late(transfer: S3Transfer, keys: list[str]) -> None:
            self._let_go.wait(30)
            remove(transfer, keys)
            self._deleted.set()

        monkeypatch.setattr(S3Transfer, "remove", late)

    def happen(self) -> None:
        """Delete now; what was held is gone when this returns."""
        self._let_go.set()
        self._deleted.wait(30)

    def happen_when_given(self, number: int = 1) -> None:
        """As soon as the batch that is stored as this one from now on lies there."""
        give, given = S3Transfer.give, threading.Semaphore(number - 1)

        def then_delete(transfer: S3Transfer, key: str, data: bytes) -> str:
            address = give(transfer, key, data)
            if not given.acquire(blocking=False):
                self.happen()
            return address

        self._monkeypatch.setattr(S3Transfer, "give", then_delete)

    def happen_when_answered(self) -> None:
        """As soon as a result lies there, before it is read."""
        take = S3Transfer.take

        def delete_first(transfer: S3Transfer, key: str, size: int) -> bytes:
            self.happen()
            return take(transfer, key, size)

        self._monkeypatch.setattr(S3Transfer, "take", delete_first)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> LateDeletions:
    return LateDeletions(monkeypatch)


@pytest.mark.parametrize("moment", [LateDeletions.happen_when_given, LateDeletions.happen_when_answered])
async def test_a_late_deletion_takes_neither_the_next_batch_nor_its_result(
    on_lambda: Start, echo_spec: Spec, late: LateDeletions, moment: Callable[[LateDeletions], None]
) -> None:
    there = await on_lambda()
    _, channel = await there.begin(echo_spec())
    first, second = b"1" * LARGE_BYTES, b"2" * LARGE_BYTES
    assert answers(await send(channel, request_frame(first))) == [(200, first)]
    moment(late)
    assert answers(await send(channel, request_frame(second, batch_id=2))) == [(200, second)]
    await there.platform.stop()
    assert there.aws.left() == []


async def test_late_deletion_does_not_take_a_throttled_batch_that_is_sent_again(
    on_lambda: Start, echo_spec: Spec, late: LateDeletions
) -> None:
    there = await on_lambda()
    _, channel = await there.begin(echo_spec())
    body = b"1" * LARGE_BYTES
    there.aws.service.throttle(1)
    late.happen_when_given(2)
    assert answers(await send(channel, request_frame(body))) == [(200, body)]
    await there.platform.stop()
    assert there.aws.left() == []


async def test_an_address_is_signed_anew_only_where_a_result_may_lie(
    on_lambda: Start, echo_spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed: list[str] = []
    address_for = S3Transfer.address_for

    def noted(transfer: S3Transfer, key: str) -> str:
        signed.append(key)
        return address_for(transfer, key)

    monkeypatch.setattr(S3Transfer, "address_for", noted)
    there = await on_lambda()
    _, channel = await there.begin(echo_spec())
    there.aws.service.throttle(1)
    large = b"1" * LARGE_BYTES
    for body in (b"small", b"another", large):
        assert answers(await send(channel, request_frame(body))) == [(200, body)]
    assert len(signed) == 1
    for body in (large, b"small", large):
        assert answers(await send(channel, request_frame(body))) == [(200, body)]
    assert len(set(signed)) == len(signed) == 3
