"""Leaders that were frozen, in virtual time: whatever they had decided, they write nothing any more."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Replace, Target
from tests.unit.kubernetes_platform.elections import Candidate, Leases, Machine


async def test_a_frozen_leader_writes_nothing_when_it_goes_on(leases: Leases, machine: Machine) -> None:
    first = Candidate("first", leases, machine)
    await first.leader.attempt()
    before = list(leases.written)
    machine.now_s += 10.0  # stopped for as long; its other clocks stand still
    pod = Target(LEASES, "openfaas", "another")
    with pytest.raises(GnomonError):
        await first.writes.settle(pod, lambda _: None if leases.document is None else _renamed(leases.document), "write it")
    assert leases.written == before
    assert first.gone == ["the Lease was not renewed in time; another process leads from now on"]


def _renamed(document: dict[str, Any]) -> Any:
    return Replace({**document, "spec": {**document["spec"], "holderIdentity": "written by a frozen leader"}})


async def test_the_time_runs_from_when_a_renewal_was_sent(leases: Leases, machine: Machine) -> None:
    first = Candidate("first", leases, machine)
    answer = leases.call

    def slow(method: str, path: str, **request: Any) -> dict[str, Any]:
        result = answer(method, path, **request)
        machine.now_s += 0.0 if method == "GET" else 4.0
        return result

    leases.call = slow  # type: ignore[method-assign]
    await first.leader.attempt()
    machine.now_s += 5.9
    assert first.tenure.leading
    machine.now_s += 0.1
    assert not first.tenure.leading


async def test_a_renewal_that_was_frozen_on_its_way_back_is_too_late(leases: Leases, machine: Machine) -> None:
    first = Candidate("first", leases, machine)
    await first.leader.attempt()
    answer = leases.call

    def frozen(method: str, path: str, **request: Any) -> dict[str, Any]:
        result = answer(method, path, **request)
        machine.now_s += 60.0
        return result

    leases.call = frozen  # type: ignore[method-assign]
    await first.leader.attempt()
    assert len(first.gone) == 1
    assert not first.tenure.leading


@contextmanager
def frozen_before(leases: Leases, machine: Machine, seconds: float) -> Iterator[None]:
    """Processes are frozen for so long when they have decided to write, and have not looked at the clock yet."""
    answer = leases.call

    def frozen(method: str, path: str, **request: Any) -> dict[str, Any]:
        machine.now_s += 0.0 if method == "GET" else seconds
        return answer(method, path, **request)

    leases.call = frozen  # type: ignore[method-assign]
    try:
        yield
    finally:
        leases.call = answer  # type: ignore[method-assign]


async def test_a_renewal_that_was_frozen_before_it_was_sent_is_not_sent(leases: Leases, machine: Machine) -> None:
    first, second = Candidate("first", leases, machine), Candidate("second", leases, machine)
    await first.leader.attempt()
    await second.leader.attempt()  # sees it now: its 15 s begin
    machine.now_s += 1.0
    with frozen_before(leases, machine, 12.0):
        await first.leader.attempt()
    assert leases.written == ["first"]
    assert first.gone == ["the Lease was not renewed in time; another process leads from now on"]
    machine.now_s += 2.0
    await second.leader.attempt()
    assert second.tenure.leading, "a renewal that came so late would have kept it waiting for 15 s more"


async def test_who_was_frozen_before_it_took_the_lease_looks_again(leases: Leases, machine: Machine) -> None:
    first = Candidate("first", leases, machine)
    with frozen_before(leases, machine, 12.0):
        await first.leader.attempt()
    assert leases.written == []
    await first.leader.attempt()
    assert first.tenure.leading
    assert first.gone == []
