"""Leader election by a Lease, and a candidacy that leads with its address, on a machine whose boot-time clock a test moves."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.client import Refused, Unreachable
from gnomon_platforms.kubernetes.lease import (
    ADDRESS_ANNOTATION,
    Candidacy,
    Leader,
    LeaseRecord,
    LeaseTiming,
    Observer,
    Tenure,
    identity_of_process,
    lease_record,
    seconds_to_count_from,
)
from gnomon_platforms.kubernetes.resources import LEASES
from gnomon_platforms.kubernetes.writes import Replace, Target, Writer
from tests.virtual_clock import VirtualClock

LEASE = Target(LEASES, "openfaas", "gnomon")


class Machine:
    """A boot-time clock that a test moves, alone of all clocks when a process is frozen."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Leases:
    """The API server's side: one Lease, with versions. Writes during `lost_answers` are carried out unheard."""

    def __init__(self) -> None:
        self.document: dict[str, Any] | None = None
        self.away = False
        self.lost_answers = 0
        self.hanging: Machine | None = None
        """The clock of a machine whose next request gets no answer."""
        self.written: list[str] = []
        self.version = 0

    def call(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        if request["fence"] is not None:
            request["fence"]()
        if self.away:
            raise Unreachable("nobody answers")
        if self.hanging is not None:
            self.hanging.now_s += request["timeout_s"]
            self.hanging = None
            raise Unreachable("no answer in time")
        if method == "GET":
            if self.document is None:
                raise Refused(404, "NotFound", path)
            return self.document
        body = request["body"]
        if method == "POST" and self.document is not None:
            raise Refused(409, "AlreadyExists", path)
        if method == "PUT" and (self.document is None or body["metadata"]["resourceVersion"] != str(self.version)):
            raise Refused(409, "Conflict", path)
        self.version += 1
        self.document = {**body, "metadata": {**body["metadata"], "uid": "u", "resourceVersion": str(self.version)}}
        self.written.append(body["spec"]["holderIdentity"])
        if self.lost_answers:
            self.lost_answers -= 1
            raise Unreachable("no answer")
        return self.document


class Candidate:
    """A process: a leader with its tenure, and what became of it."""

    def __init__(self, name: str, leases: Leases, boot_s: Machine, counts_from: Callable[[], int] = lambda: 0) -> None:
        self.gone: list[str] = []
        self.tenure = Tenure(self.gone.append, boot_s)
        clock = VirtualClock()
        unfenced: Any = leases
        self.renewals = Writer(unfenced, clock, random.Random(1))
        self.writes = Writer(unfenced, clock, random.Random(1), self.tenure.check)
        self.leader = Leader(self.renewals, LEASE, name, self.tenure, clock, boot_s=boot_s, counts_from=counts_from)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def leases() -> Leases:
    return Leases()


async def test_the_first_candidate_leads_and_the_second_waits(leases: Leases, machine: Machine) -> None:
    first, second = Candidate("first", leases, machine), Candidate("second", leases, machine)
    await first.leader.attempt()
    await second.leader.attempt()
    assert (first.tenure.leading, second.tenure.leading) == (True, False)
    assert first.tenure.epoch == 1
    first.tenure.check()
    with pytest.raises(GnomonError) as refused:
        second.tenure.check()
    assert refused.value.code == "not_leading"
    # Who never led need not be gone.
    assert second.gone == []


async def test_a_leader_that_renews_stays_and_keeps_its_epoch(leases: Leases, machine: Machine) -> None:
    first, second = Candidate("first", leases, machine), Candidate("second", leases, machine)
    for _ in range(20):
        await first.leader.attempt()
        await second.leader.attempt()
        machine.now_s += 2.0
    assert first.tenure.leading
    assert (first.tenure.epoch, set(leases.written)) == (1, {"first"})


async def test_a_silent_leader_is_succeeded_after_the_lease_and_under_a_larger_epoch(leases: Leases, machine: Machine) -> None:
    first, second = Candidate("first", leases, machine), Candidate("second", leases, machine)
    await first.leader.attempt()
    machine.now_s += 1.0
    await second.leader.attempt()  # sees the renewal now: its 15 s begin
    machine.now_s += 14.9
    await second.leader.attempt()
    assert not second.tenure.leading
    machine.now_s += 0.1
    await second.leader.attempt()
    assert second.tenure.leading
    assert second.tenure.epoch == 2


async def test_no_two_may_write_at_any_time(leases: Leases, machine: Machine) -> None:
    # Chance decides who gets a turn, how long it takes and who is cut off; at no moment may two write.
    rng = random.Random(7)
    candidates = [Candidate(f"c{number}", leases, machine) for number in range(3)]
    epochs: list[int] = []
    for _ in range(600):
        machine.now_s += rng.choice([0.1, 0.5, 2.0, 6.0])
        leases.away = rng.random() < 0.3
        await rng.choice(candidates).leader.attempt()
        leading = [candidate for candidate in candidates if candidate.tenure.leading]
        assert len(leading) <= 1
        if leading and (not epochs or epochs[-1] != leading[0].tenure.epoch):
            epochs.append(leading[0].tenure.epoch)
    assert len(epochs) > 5
    assert epochs == sorted(set(epochs))


async def test_a_server_that_is_away_ends_the_leader_in_time(leases: Leases, machine: Machine) -> None:
    first = Candidate("first", leases, machine)
    await first.leader.attempt()
    leases.away = True
    for _ in range(4):
        machine.now_s += 2.0
        await first.leader.attempt()
    assert first.tenure.leading
    machine.now_s += 2.0
    await first.leader.attempt()
    assert len(first.gone) == 1


async def test_a_renewal_whose_answer_was_lost_is_read_and_counted_from_the_next(leases: Leases, machine: Machine) -> None:
    first = Candidate("first", leases, machine)
    await first.leader.attempt()
    machine.now_s += 2.0
    leases.lost_answers = 1
    await first.leader.attempt()
    machine.now_s += 2.0
    await first.leader.attempt()
    assert first.gone == []
    machine.now_s += 9.9
    assert first.tenure.leading
    assert first.tenure.epoch == 1


async def test_request_that_hangs_leaves_time_for_another_renewal(leases: Leases, machine: Machine) -> None:
    """The connection leads to an API server whose node has died; others answer on a new one."""
    first = Candidate("first", leases, machine)
    await first.leader.attempt()
    for _ in range(3):
        machine.now_s += 2.0
        leases.hanging = machine
        await first.leader.attempt()
        machine.now_s += 2.0
        await first.leader.attempt()
        assert (first.tenure.leading, first.gone) == (True, [])
    machine.now_s += 9.9
    assert first.tenure.leading, "the last renewal counts"


async def test_a_leader_that_sees_another_holder_is_gone_at_once(leases: Leases, machine: Machine) -> None:
    first = Candidate("first", leases, machine)
    await first.leader.attempt()
    assert leases.document is not None
    leases.version += 1
    leases.document = {
        "metadata": {**leases.document["metadata"], "resourceVersion": str(leases.version)},
        "spec": {**leases.document["spec"], "holderIdentity": "by hand"},
    }
    machine.now_s += 2.0
    await first.leader.attempt()  # its renewal is refused …
    await first.leader.attempt()  # … and then it looks
    assert len(first.gone) == 1
    assert "by hand" in first.gone[0]


async def test_a_leader_that_stops_hands_over_without_a_wait(leases: Leases, machine: Machine) -> None:
    first, second = Candidate("first", leases, machine), Candidate("second", leases, machine)
    await first.leader.attempt()
    await second.leader.attempt()
    await first.leader.release()
    await second.leader.attempt()
    assert second.tenure.leading
    assert second.tenure.epoch == 2
    machine.now_s += 60.0
    first.tenure.watch()
    assert first.gone == []


async def test_a_lease_that_was_made_anew_counts_on_where_nobody_remembers(leases: Leases, machine: Machine) -> None:
    """An installation was removed and applied again: nodes have obeyed the last epoch of the one before."""
    before = Candidate("before", leases, machine, counts_from=lambda: 1000)
    await before.leader.attempt()
    assert before.tenure.epoch == 1001
    made: dict[str, Any] = {"metadata": {"name": LEASE.name, "namespace": LEASE.namespace, "uid": "2", "resourceVersion": "7"}}
    leases.version, leases.document = 7, made
    after = Candidate("after", leases, machine, counts_from=lambda: 1060)
    await after.leader.attempt()
    assert after.tenure.leading
    assert after.tenure.epoch == 1061
    await after.leader.release()
    third = Candidate("third", leases, machine, counts_from=lambda: 2000)
    await third.leader.attempt()
    assert third.tenure.epoch == 1062, "it says where it is"


async def run_until_it_leads(leader: Leader) -> None:
    """Let it stand for the Lease until it has it, and cancel it then."""
    task = asyncio.create_task(leader.run())
    async with asyncio.timeout(30.0):
        await leader.leading.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_unexpected_error_does_not_stop_a_candidate(leases: Leases, machine: Machine) -> None:
    leases.document = {"metadata": {"name": LEASE.name}, "spec": {"leaseDurationSeconds": "a while"}}
    candidate = Candidate("first", leases, machine)
    await candidate.leader.attempt()
    leases.document = None
    await candidate.leader.attempt()
    assert candidate.tenure.leading


async def test_run_stands_until_it_is_cancelled(leases: Leases, machine: Machine) -> None:
    clock = VirtualClock()
    store: Any = leases
    tenure = Tenure(lambda _: None, machine)
    leader = Leader(Writer(store, clock, random.Random(1)), LEASE, "first", tenure, clock, boot_s=machine)
    await run_until_it_leads(leader)
    assert tenure.leading


class Passing:
    """A clock on which sleepers wake at once, and so much later on their machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def now_s(self) -> float:
        return self._machine.now_s

    async def sleep(self, duration_s: float) -> None:
        self._machine.now_s += duration_s


async def test_candidate_reads_the_lease_when_it_expires(leases: Leases, machine: Machine) -> None:
    first, second = Candidate("first", leases, machine), Candidate("second", leases, machine)
    await first.leader.attempt()
    machine.now_s += 1.5
    seen_s = machine.now_s
    taken_s: list[float] = []
    answer = leases.call

    def noted(method: str, path: str, **request: Any) -> dict[str, Any]:
        if method == "PUT":
            taken_s.append(machine.now_s)
        return answer(method, path, **request)

    leases.call = noted  # type: ignore[method-assign]
    leader = Leader(second.renewals, LEASE, "second", second.tenure, Passing(machine), boot_s=machine)
    await run_until_it_leads(leader)
    assert taken_s[0] == pytest.approx(seen_s + 15.0)  # not at the next of its looks every 2 s, which was due at 16


def test_times_that_cannot_work_are_refused() -> None:
    with pytest.raises(GnomonError) as refused:
        LeaseTiming(duration_s=10, renew_deadline_s=10.0)
    assert refused.value.code == "lease_timing"


def test_how_long_a_holder_is_silent_is_measured_by_who_looks() -> None:
    observer = Observer()
    observer.see(LeaseRecord("other", 15.0, 3, "7"), 100.0)
    assert not observer.may_take("me", 114.9)
    observer.see(LeaseRecord("other", 15.0, 3, "8"), 114.9)
    assert not observer.may_take("me", 129.8)
    assert observer.may_take("me", 129.9)
    assert observer.left_s("me", 120.0) == pytest.approx(9.9)
    assert observer.left_s("other", 120.0) == 0.0
    assert observer.transitions_if_taken("me") == 4


def test_epochs_of_a_new_lease_exceed_those_of_earlier_leases() -> None:
    """The Lease changes hands after a second at the soonest; its counter has 31 bits."""
    made_s = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
    assert seconds_to_count_from(made_s + 3600.0) - seconds_to_count_from(made_s) == 3600
    assert 0 < seconds_to_count_from(made_s) < seconds_to_count_from(datetime(2087, 1, 1, tzinfo=UTC).timestamp()) < 1 << 31
    assert lease_record({"metadata": {}}).epoch == 0, "nobody's, and no node has obeyed it"


def test_the_holder_s_name_says_in_which_pod_it_is_and_is_another_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAME", "gateway-5d_x")
    first, second = identity_of_process(), identity_of_process()
    assert (first.rpartition("_")[0], second.rpartition("_")[0]) == ("gateway-5d_x", "gateway-5d_x")
    assert first != second
    monkeypatch.delenv("POD_NAME")
    assert identity_of_process().rpartition("_")[0] == socket.gethostname()


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


async def test_frozen_candidate_reads_the_lease_again(leases: Leases, machine: Machine) -> None:
    first = Candidate("first", leases, machine)
    with frozen_before(leases, machine, 12.0):
        await first.leader.attempt()
    assert leases.written == []
    await first.leader.attempt()
    assert first.tenure.leading
    assert first.gone == []


async def test_a_lease_that_was_removed_is_made_anew_when_it_would_be_over_and_goes_on_counting(
    leases: Leases, machine: Machine
) -> None:
    """With its installation, nobody is left by then: what is made sooner, by whomever, would stay when all else has gone."""
    first, second = Candidate("first", leases, machine), Candidate("second", leases, machine)
    await first.leader.attempt()
    await second.leader.attempt()
    leases.document = None
    for _ in range(7):
        await first.leader.attempt()
        await second.leader.attempt()
        assert leases.document is None
        machine.now_s += 2.0
    assert len(first.gone) == 1, "who led may write no longer, and is begun again if it is still to be there"
    machine.now_s += 1.0
    await second.leader.attempt()
    assert second.tenure.leading
    assert second.tenure.epoch == 2


async def test_removed_lease_is_created_at_once(leases: Leases, machine: Machine) -> None:
    first, begun = Candidate("first", leases, machine), Candidate("begun", leases, machine)
    await first.leader.attempt()
    leases.document = None
    await begun.leader.attempt()
    assert begun.tenure.leading
    await first.leader.attempt()  # its renewal is refused …
    await first.leader.attempt()  # … and then it looks
    assert "begun" in first.gone[0]


async def test_ending_leader_ignores_a_removed_lease(leases: Leases, machine: Machine) -> None:
    """The leader's answers in progress are not lost; it writes nothing and makes no Lease."""
    first = Candidate("first", leases, machine)
    await first.leader.attempt()
    first.leader.leave()
    machine.now_s += 2.0
    await first.leader.attempt()
    assert first.tenure.leading, "it leads to its end"
    leases.document = None
    for _ in range(10):
        machine.now_s += 2.0
        await first.leader.attempt()
    await first.leader.release()
    assert (first.gone, first.tenure.leading, leases.document) == ([], False, None)


async def test_ending_candidate_takes_no_lease(leases: Leases, machine: Machine) -> None:
    first, leaving = Candidate("first", leases, machine), Candidate("leaving", leases, machine)
    await first.leader.attempt()
    await leaving.leader.attempt()
    leaving.leader.leave()
    await first.leader.release()
    await leaving.leader.attempt()
    assert not leaving.tenure.leading
    assert set(leases.written) == {"first", ""}


def candidacy(leases: Leases, gone: list[str]) -> Candidacy:
    api: Any = leases
    return Candidacy(api, LEASE, WallClock(), random.Random(1), counts_from=lambda: 41, tenure=Tenure(gone.append))


async def test_a_candidacy_leads_with_its_address_and_releases_the_lease_for_the_next() -> None:
    leases, gone = Leases(), list[str]()
    first, second = candidacy(leases, gone), candidacy(leases, gone)
    assert (first.leads, first.epoch) == (False, 1)
    await first.start("http://10.0.0.1:8080")
    await second.start()
    assert (first.leads, second.leads) == (True, False)
    assert first.epoch == 42
    assert leases.document is not None
    assert leases.document["metadata"]["annotations"][ADDRESS_ANNOTATION] == "http://10.0.0.1:8080"
    await first.stop()
    assert (first.leads, leases.document["spec"]["holderIdentity"]) == (False, "")
    await second.leader.attempt()
    assert (second.leads, second.epoch) == (True, 43)
    await second.stop()
    assert gone == []


async def test_a_renewal_in_flight_does_not_keep_the_lease_from_being_released() -> None:
    leases = Leases()
    first = candidacy(leases, [])
    await first.start("http://10.0.0.1:8080")
    # The API server has carried out a renewal whose answer nobody waited for: our copy of the Lease is one version behind.
    assert leases.document is not None
    leases.version += 1
    leases.document["metadata"]["resourceVersion"] = str(leases.version)
    await first.stop()
    assert leases.document["spec"]["holderIdentity"] == ""
