"""Gateways that share a cluster's functions: one is killed, frozen, or all are replaced, under load at all of them."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal

import pytest

from tests.integration.faults.conftest import freeze, go_on
from tests.integration.ownership.callers import BROKEN, CALLERS, FUNCTIONS, OK, Callers
from tests.kubernetes.replicas.conftest import Gateways

pytestmark = pytest.mark.timeout(400)
_LOG = logging.getLogger(__name__)
HELD = {(BROKEN, "broken off"), (502, "replica_lost")}
"""The statuses that a request may get that a killed replica held: at its listener, or forwarded to it."""


async def test_any_replica_answers_by_forwarding(gateways: Gateways) -> None:
    """Functions are deployed, changed, counted and scaled from zero through the one that does not lead."""
    b, a = gateways.processes["b"], gateways.processes["a"]
    await gateways.deploy("b")
    for number, gateway in enumerate((a, b, a, b)):
        answer = await asyncio.to_thread(gateway.call, "POST", "/function/echo", b"first %d" % number)
        assert (answer.status, answer.data) == (200, b"first %d" % number)
    await gateways.eventually(
        lambda: [pod.status("echo")["invocationCount"] for pod in (a, b)] == [4, 4], "what the owner has counted is not told"
    )
    resting = {"com.openfaas.scale.min": "0", "com.openfaas.scale.zero": "true"}
    document = {"service": "cold", "image": "echo:1", "labels": resting, "annotations": {"gnomon/autoscaler": "kpa"}}
    assert (await asyncio.to_thread(b.call, "POST", "/system/functions", document)).status == 202
    await gateways.eventually(lambda: a.call("GET", "/system/function/cold").status == 200, "the leader does not know it")
    await asyncio.to_thread(b.call, "POST", "/system/scale-function/cold", {"serviceName": "cold", "replicas": 0})
    await gateways.eventually(lambda: b.status("cold")["availableReplicas"] == 0, "it is not at zero")
    answer = await asyncio.to_thread(a.call, "POST", "/function/cold", b"wake up")
    assert (answer.status, answer.data) == (200, b"wake up"), "the owner has it, and the leader makes the instance"
    decisions = (await asyncio.to_thread(b.call, "GET", "/gnomon/functions/cold/decisions")).json()
    assert any(action["action"] == "CreateBody" for decision in decisions for action in decision["actions"])
    # One more, and one fewer, while requests flow: the one that is let go answers what it has.
    load = asyncio.create_task(some_calls(gateways, 200))
    for replicas in (3, 2):
        wanted = {"serviceName": "ocr", "replicas": replicas}
        assert (await asyncio.to_thread(b.call, "POST", "/system/scale-function/ocr", wanted)).status == 202
        await gateways.eventually(
            lambda replicas=replicas: b.status("ocr")["availableReplicas"] == replicas,  # type: ignore[misc]
            f"there were never {replicas}",
        )
    assert await load == {}
    # An update, which the leader carries out, replaces what the owner sends batches to.
    load = asyncio.create_task(some_calls(gateways, 100))
    changed = {"service": "echo", "image": "echo:2", "labels": {"com.openfaas.scale.min": "1"}, "envVars": {"NEW": "1"}}
    changed["annotations"] = {"gnomon/autoscaler": "fixed"}
    assert (await asyncio.to_thread(b.call, "PUT", "/system/functions", changed)).status == 202
    await gateways.eventually(lambda: b.status("echo")["availableReplicas"] == 1, "the update never ended")
    assert await load == {}
    gone = {"functionName": "echo", "namespace": "openfaas-fn"}
    assert (await asyncio.to_thread(b.call, "DELETE", "/system/functions", gone)).status == 202
    await gateways.eventually(
        lambda: {gateway.call("POST", "/function/echo", b"").status for gateway in (a, b)} == {404}, "it is served still"
    )


async def some_calls(gateways: Gateways, count: int) -> dict[bytes, tuple[int, str]]:
    callers = Callers(gateways)
    running = asyncio.create_task(callers.run())
    await callers.some(count)
    callers.end()
    await running
    callers.check_once()
    return callers.failed()


@pytest.mark.parametrize(("victim", "heir", "limit_s"), [("a", "b", 10.0), ("b", "a", 30.0)], ids=["leader", "owner"])
async def test_killed_gateway_loses_only_what_it_executed(gateways: Gateways, victim: str, heir: str, limit_s: float) -> None:
    """The leader owns nothing: without it functions are served on. Without the owner they are the leader's within a second."""
    await gateways.deploy("a")
    assert gateways.leader() == "a"
    callers = Callers(gateways)
    running = asyncio.create_task(callers.run())
    await callers.some(200)
    os.kill(gateways.pid(victim), signal.SIGKILL)
    await gateways.end(victim)
    ended_s = asyncio.get_running_loop().time()
    await callers.some(300)
    again_s = callers.again_s(ended_s)
    _LOG.info("%s killed: every function has answered again after %.2f s", victim, again_s)
    await gateways.shared_by(heir, members=1)
    await callers.some(100)
    callers.end()
    await running
    callers.check_once()
    assert again_s < limit_s
    late = [token for token in callers.failed() if callers.sent[token] > ended_s]
    assert late == [], [(callers.sent[token] - ended_s, callers.answers[token]) for token in late]
    assert len(callers.failed()) <= 2 * CALLERS
    assert set(callers.failed().values()) <= HELD
    await gateways.eventually(lambda: gateways.leader() == heir, "nobody leads")
    # The next one comes, and takes what the new leader has.
    await gateways.start("c")
    await gateways.shared_by("c", members=2)
    assert await some_calls(gateways, 100) == {}
    answer = await asyncio.to_thread(
        gateways.processes["c"].call, "POST", "/system/scale-function/echo", {"serviceName": "echo", "replicas": 2}
    )
    assert answer.status == 202


async def test_the_owner_is_frozen_left_out_and_back(gateways: Gateways) -> None:
    await gateways.deploy("a")
    callers = Callers(gateways)
    running = asyncio.create_task(callers.run())
    await callers.some(200)
    freeze(gateways.pid("b"))
    try:
        frozen_s = asyncio.get_running_loop().time()
        await gateways.shared_by("a", members=1)
        left_out_s = asyncio.get_running_loop().time() - frozen_s
        _LOG.info("left out %.1f s after it was frozen", left_out_s)
        # Callers whose request it holds wait for it.
        answer = await asyncio.to_thread(gateways.processes["a"].call, "POST", "/function/echo", b"meanwhile")
        assert (answer.status, answer.data) == (200, b"meanwhile")
    finally:
        go_on(gateways.pid("b"))
    await gateways.shared_by("b", members=2)
    await callers.some(200)
    callers.end()
    await running
    executed = gateways.executed()
    assert executed.pop(b"meanwhile") == 1
    assert callers.doubled == []
    assert [token for token, times in executed.items() if times > 1] == []
    assert {token for token, (status, _) in callers.answers.items() if status == OK} <= executed.keys()
    assert len(callers.failed()) <= CALLERS
    assert set(callers.failed().values()) <= {(502, "replica_lost")}


async def test_all_are_replaced_one_after_the_other_and_no_request_fails(gateways: Gateways) -> None:
    await gateways.deploy("a")
    pods = await asyncio.to_thread(gateways.pods)
    callers = Callers(gateways)
    running = asyncio.create_task(callers.run())
    await callers.some(100)
    for old, new in (("a", "c"), ("b", "d")):
        await gateways.start(new)
        await gateways.eventually(lambda new=new: new in gateways.owners(), f"{new} owns nothing")  # type: ignore[misc]
        await callers.some(100)
        assert await gateways.end(old) == 0
        await gateways.eventually(lambda old=old: old not in gateways.members(), f"{old} is there still")  # type: ignore[misc]
        await callers.some(100)
    callers.end()
    await running
    callers.check_once()
    assert callers.failed() == {}
    assert await asyncio.to_thread(gateways.pods) == pods, "what a gateway leaves is not lost"
    await gateways.eventually(lambda: gateways.leader() in ("c", "d"), "nobody leads")
    listed = await asyncio.to_thread(gateways.processes["d"].call, "GET", "/system/functions")
    assert {load["name"] for load in json.loads(listed.data)} == set(FUNCTIONS)
