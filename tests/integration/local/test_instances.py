"""Instances and zygotes on one machine: many, at once, dying, retired."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_core import packets
from gnomon_core.clock import WallClock
from gnomon_core.fleet import Instance
from gnomon_core.functions import read_deployment
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.launch import Sandbox
from gnomon_core.wire import Frame
from gnomon_gateway.functions.deployments import OtherReplicas
from gnomon_gateway.functions.instances import RollingUpdate
from gnomon_platforms.local import instances
from gnomon_platforms.local import supervision as local_supervision
from gnomon_platforms.local.platform import LocalPlatform
from gnomon_platforms.local.supervision import BARE, TORCH, Environment, Supervision, SupervisionListener, packages
from tests.platform_testing import NoModels, NothingBuilt, Recorder, answers, request_frame, send
from tests.waiting import eventually, until

ROOT = Path(__file__).parents[3]
Running = Any
"""The class of that name in conftest.py, which pytest does not let us import."""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_dead(pids: list[int], patience_s: float = 10.0) -> list[int]:
    deadline_s = time.monotonic() + patience_s
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return left


async def pid_of(running: Running, instance: Any) -> int:
    return int(await running.ask(instance, "echo $PPID"))


async def test_an_instance_killed_in_the_middle_of_a_batch_loses_only_that_batch(running: Running) -> None:
    victim, other = await running.begin("victim"), await running.begin("other")
    pid = await pid_of(running, victim)
    lost: asyncio.Future[Frame | None] = send(running.channel(victim), request_frame(b"sleep 1000"))
    kept = send(running.channel(other), request_frame(b"sleep 0.3; echo kept"))
    os.kill(pid, signal.SIGKILL)
    assert await asyncio.wait_for(lost, 5) is None
    assert answers(await kept) == [(200, b"kept\n")]
    assert "SIGKILL" in await running.events.reason(victim.id)
    assert running.events.times_gone == {victim.id: 1}
    assert running.platform.instances("victim.openfaas-fn") == ()


async def test_child_processes_end_with_their_instance(running: Running) -> None:
    instance = await running.begin("parent")
    left = await running.ask(instance, "setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!")
    assert alive(int(left))
    await running.platform.destroy(instance.id)
    await running.events.reason(instance.id)
    assert until_dead([int(left)]) == []


async def test_an_instance_that_does_not_react_is_ended_in_bounded_time(running: Running, monkeypatch: Any) -> None:
    monkeypatch.setattr(instances, "STOP_S", 0.3)
    monkeypatch.setattr(instances, "TERM_S", 0.3)
    instance = await running.begin("stuck")
    os.kill(await pid_of(running, instance), signal.SIGSTOP)
    await running.platform.destroy(instance.id)
    assert "SIGKILL" in await asyncio.wait_for(running.events.reason(instance.id), 5)


async def test_an_instance_that_never_gets_ready_is_ended_with_the_reason(running: Running, monkeypatch: Any) -> None:
    monkeypatch.setattr(running.platform, "_start_timeout_s", 0.0005)
    spec = read_deployment({"service": "slow", "image": "functions/alpine", "envProcess": "cat"})
    instance = await running.platform.create(InstanceRequest(spec, 1, 1, None, {}))
    assert "not ready after" in await running.events.reason(instance.id)


async def test_a_killed_supervisor_takes_its_instances_along_and_is_replaced(running: Running) -> None:
    instance = await running.begin("before")
    pid = await pid_of(running, instance)
    os.kill(running.platform._supervisor.pid, signal.SIGKILL)
    assert "supervisor" in await running.events.reason(instance.id)
    assert until_dead([pid]) == []
    after = await running.begin("after", "cat")
    assert await running.ask(after, "works") == "works"


async def test_a_killed_zygote_is_replaced_and_its_instances_live_on(running: Running) -> None:
    before = await running.begin("before", "cat")
    supervisor = running.platform._supervisor.pid
    [zygote] = [pid for pid in children(supervisor) if is_zygote(pid)]
    os.kill(zygote, signal.SIGKILL)
    assert until_dead([zygote]) == []
    after = await running.begin("after", "cat")
    assert await running.ask(after, "new") == "new"
    assert await running.ask(before, "old") == "old"


@pytest.mark.parametrize("killed", ["zygote", "supervisor"])
async def test_an_instance_that_is_not_born_yet_is_born_of_the_next_one(running: Running, killed: str) -> None:
    await running.begin("before", "cat")
    supervisor = running.platform._supervisor.pid
    [zygote] = [pid for pid in children(supervisor) if is_zygote(pid)]
    os.kill(zygote, signal.SIGSTOP)
    spec = read_deployment({"service": "coming", "image": "functions/alpine", "envProcess": "cat"})
    coming = await running.platform.create(InstanceRequest(spec, 1, 1, None, {}))
    await until(lambda: running.platform._instances[coming.id].channel is not None, "it was never ordered")
    os.kill(zygote if killed == "zygote" else supervisor, signal.SIGKILL)
    assert answers(await send(await running.events.channel(coming.id), request_frame(b"here"))) == [(200, b"here")]
    assert coming.id not in running.events.gone
    await running.platform.destroy(coming.id)
    await running.events.reason(coming.id)
    assert running.events.times_gone[coming.id] == 1


@pytest.mark.torch
@pytest.mark.parametrize("steady_s", [0.0, 3600.0], ids=["after it served", "as soon as it was warm"])
async def test_a_killed_zygote_with_torch_is_replaced_before_anybody_needs_it(
    tmp_path: Path, monkeypatch: Any, steady_s: float
) -> None:
    monkeypatch.setattr(local_supervision, "TORCH_PAUSE_S", 3600.0)
    monkeypatch.setattr(local_supervision, "TORCH_STEADY_S", steady_s)
    platform = LocalPlatform(tmp_path / "state", NoModels(), NothingBuilt(), pool=0)
    await platform.start(Recorder())
    try:
        await platform._supervisor.warm(TORCH)
        before = set(filter(is_zygote, children(platform._supervisor.pid)))
        for zygote in before:
            os.kill(zygote, signal.SIGKILL)
        first = platform._supervisor.zygotes._started["torch"].number
        await until(lambda: platform._supervisor.zygotes._starts > first, "no other zygote with torch")
        await platform._supervisor.warm(TORCH)
        assert set(filter(is_zygote, children(platform._supervisor.pid))) - before
    finally:
        await platform.stop()


async def test_an_instance_whose_zygote_is_killed_while_it_warms_up_comes_all_the_same(running: Running) -> None:
    before = await running.begin("before", "cat")
    supervisor = running.platform._supervisor.pid
    known = set(children(supervisor))
    [zygote] = [pid for pid in known if is_zygote(pid)]
    os.kill(zygote, signal.SIGKILL)
    spec = read_deployment({"service": "coming", "image": "functions/alpine", "envProcess": "cat"})
    coming = await running.platform.create(InstanceRequest(spec, 1, 1, None, {}))
    [young] = await until(lambda: set(children(supervisor)) - known, "no other zygote")
    os.kill(young, signal.SIGKILL)
    assert answers(await send(await running.events.channel(coming.id), request_frame(b"here"))) == [(200, b"here")]
    assert not {coming.id, before.id} & running.events.gone.keys()


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_zygote(pid: int) -> bool:
    # It leads a session; a child that waits for its order does not, and an instance has another name.
    return os.getsid(pid) == pid and Path(f"/proc/{pid}/comm").read_text().strip() == "gnomon zygote"


def test_a_sigkill_of_the_owner_leaves_no_process_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.integration.local.owner", str(tmp_path / "state")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = [int(text) for text in owner.stdout.readline().split()]
        assert len(pids) >= 15
        owner.kill()
    assert until_dead(pids) == []


CROWD = 500


@pytest.mark.timeout(90)
async def test_a_crowd_that_is_called_off_again_leaves_the_platform_working(tmp_path: Path) -> None:
    """The supervisor hands orders on, the zygote reports births: neither may wait for the other to listen."""
    events = Recorder()
    platform = LocalPlatform(tmp_path / "state", NoModels(), NothingBuilt(), cores=CROWD, preload_torch=False)
    await platform.start(events)
    try:
        spec = read_deployment(
            {"service": "crowd", "image": "functions/alpine", "envProcess": "cat", "limits": {"memory": "8Mi"}}
        )
        await platform.prepare(spec)
        crowd = [await platform.create(InstanceRequest(spec, 1, 1, None, {})) for _ in range(CROWD)]
        await events.channel(crowd[0].id)
        for instance in crowd:
            await platform.destroy(instance.id)
        for instance in crowd:
            await events.reason(instance.id)
        last = await platform.create(InstanceRequest(spec, 1, 1, None, {}))
        await events.channel(last.id)
    finally:
        await asyncio.wait_for(platform.stop(), 60)


SPEC = read_deployment({"service": "echo", "image": "functions/alpine:latest", "envProcess": "cat"})
NAME = str(SPEC.key)


class Bodies:
    """The Bodies of one function, made by its platform."""

    def __init__(self, platform: LocalPlatform) -> None:
        self._platform = platform

    def of(self, deployed: Any) -> tuple[Instance, ...]:
        return self._platform.instances(deployed.name)

    async def create(self, deployed: Any, cores: int) -> None:
        await self._platform.create(InstanceRequest(deployed.spec, 1, cores, None, {}))

    def stop(self, deployed: Any, instance_id: str) -> None:
        raise AssertionError((deployed, instance_id))


async def test_two_that_make_room_at_once_get_one_successor_where_one_is_wanted(tmp_path: Path) -> None:
    platform = LocalPlatform(tmp_path / "state", NoModels(), NothingBuilt(), preload_torch=False)
    await platform.start(Recorder())
    deployed = SimpleNamespace(name=NAME, spec=SPEC, live=lambda instances: instances)
    scaling = SimpleNamespace(desired=lambda _: 1, poke=lambda _: None)
    updates = RollingUpdate(Bodies(platform), cast("Any", scaling), OtherReplicas())
    try:
        await asyncio.gather(*(updates.replace_retired(cast("Any", deployed)) for _ in range(2)))
        assert len(platform.instances(NAME)) == 1
    finally:
        await platform.stop()


BUILT = Environment("f", BARE.python, (), Sandbox())
"""As good as one that was built for a user, as far as its zygote is concerned."""


@pytest.fixture
async def supervision(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Supervision]:
    """A supervision that keeps no zygote which nobody uses."""
    monkeypatch.setattr(local_supervision, "MAX_FOREIGN_ZYGOTES", 0)
    made = Supervision((), WallClock())
    await made.start(SupervisionListener(lambda _: None, lambda: None, lambda: None, lambda: None))
    yield made
    await made.stop()


def below(supervision: Supervision) -> list[int]:
    """The zygotes, and their children that wait for an order."""
    return children(supervision.pid)


async def test_retired_zygote_is_restarted_when_needed_again(supervision: Supervision) -> None:
    await supervision.warm(BUILT)
    for _ in range(3):
        # The end of the first is told while the second is on its way, and does not mean that one.
        supervision.zygotes.retire_unused(set())
        await supervision.warm(BUILT)
    supervision.zygotes.retire_unused(set())
    await until(lambda: not below(supervision), "one is left that nobody knows of")


async def test_retiring_a_dead_zygote_does_not_fail_the_next(supervision: Supervision) -> None:
    await supervision.warm(BUILT)
    first = min(below(supervision))
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{first}").exists())
    # The platform hears of that after it has asked for the next.
    supervision.zygotes.retire_unused(set())
    await supervision.zygotes.warm(BUILT)


ORDER = json.dumps({"packages": packages(), "preload": []})
ROUNDS = 8
ENDS_S = 5.0


def kill_while_it_forks() -> int:
    """The group of a zygote that was killed while it forked the child that waits for the first order."""
    ours, theirs = packets.socket_pair()
    with ours, theirs:
        numbers = [str(number) for number in (theirs.fileno(), os.getpid(), -1)]
        script = str(Path(packages()["gnomon_runtime"], "bootstrap.py"))
        command = [sys.executable, "-I", "-u", script, ORDER, *numbers]
        with subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True) as zygote:
            message, _ = packets.receive(ours)
            assert message["event"] == "warm"
            # The child's number comes last: on a busy machine this process may look too late to see the one between.
            while not (children(zygote.pid) or select.select([ours], [], [], 0)[0]):
                pass
            zygote.kill()
    return zygote.pid


def group(number: int) -> list[int]:
    """The living processes of this process group: forks stay in their zygote's until their order comes."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(of) == number and state != "Z":
                found.append(int(entry.name))
    return found


def test_a_zygote_that_is_killed_while_it_forks_leaves_no_process() -> None:
    for _ in range(ROUNDS):
        zygote = kill_while_it_forks()
        end_s = time.monotonic() + ENDS_S
        while (left := group(zygote)) and time.monotonic() < end_s:
            time.sleep(0.01)
        for pid in left:
            os.kill(pid, 9)
        assert left == []
