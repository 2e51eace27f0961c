"""Batches and results too large for an Invoke cross through the bucket, and a late deletion takes nothing from the next batch."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gnomon_core.functions import FunctionSpec
from gnomon_platforms.aws_lambda.s3_transfer import S3Transfer
from gnomon_platforms.testing import answers, request_frame, send

Start = Callable[..., Awaitable[Any]]
Spec = Callable[..., FunctionSpec]
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


async def test_nor_does_it_take_a_throttled_batch_that_is_sent_again(
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
