"""Shadows come, change and go while requests pour in, on real sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import cycle
from typing import Any

import pytest

from gnomon_core.pairs import Pair

PAIRS = (Pair(1, (1, 2), (0, 1, 1, 2)), None, Pair(2, (1,), (0, 0, 1, 1)), Pair(1, (1,), (0, 1, 1, 1)))
CLIENTS, CALLS = 8, 60


@pytest.mark.parametrize("policy", ["adaptive", "immediate"])
async def test_each_request_runs_once_and_is_answered_once_whatever_shadows_do(gateway: Any, policy: str) -> None:
    runtime = await gateway.deploy(instances=2, policy=policy, max_batch=4, slo_s=0.2, deadline_s=10.0)
    names = list(runtime.dispatcher.workers.by_id)

    async def client(number: int) -> None:
        connection = await gateway.connect()
        for call in range(CALLS):
            body = b"%d-%d" % (number, call)
            answer = await connection.call("/function/f/sleep/2", body)
            assert (answer.status, answer.body) == (200, body)

    async def change() -> None:
        for name, pair in zip(cycle(names), cycle(PAIRS), strict=False):
            runtime.pair_changed(name, pair)
            await asyncio.sleep(0.001)

    changing = asyncio.create_task(change())
    await asyncio.gather(*(client(number) for number in range(CLIENTS)))
    changing.cancel()
    ran = Counter(gateway.executed())
    assert len(ran) == CLIENTS * CALLS
    assert set(ran.values()) == {1}
    assert runtime.dispatcher.in_system == 0
    assert 0 < runtime.metrics.pairs.batches < CLIENTS * CALLS, "some with a Shadow, some without"
    assert runtime.metrics.pairs.ratios.total > 0, "and they were foretold"


async def test_a_body_that_dies_with_its_shadow_is_replaced_by_one_without(gateway: Any) -> None:
    runtime = await gateway.deploy(max_batch=4)
    (name,) = runtime.dispatcher.workers.by_id
    runtime.pair_changed(name, PAIRS[0])
    assert (await gateway.call("/function/f/", b"together")).status == 200
    assert (await gateway.call("/function/f/crash", b"x")).status == 502
    runtime.pair_changed(name, None)  # told late, of an instance that is no more
    await gateway.add_instance()
    assert (await gateway.call("/function/f/", b"alone")).status == 200
    assert runtime.metrics.pairs.batches == 1
