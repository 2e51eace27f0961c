"""A Lease that goes while processes stand for it: with its installation, or by hand."""

from __future__ import annotations

from tests.unit.kubernetes_platform.elections import Candidate, Leases, Machine


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


async def test_who_begins_where_a_lease_was_removed_makes_it_at_once(leases: Leases, machine: Machine) -> None:
    first, begun = Candidate("first", leases, machine), Candidate("begun", leases, machine)
    await first.leader.attempt()
    leases.document = None
    await begun.leader.attempt()
    assert begun.tenure.leading
    await first.leader.attempt()  # its renewal is refused …
    await first.leader.attempt()  # … and then it looks
    assert "begun" in first.gone[0]


async def test_who_is_about_to_end_goes_on_without_a_lease_that_is_removed(leases: Leases, machine: Machine) -> None:
    """What it still answers is not lost; it writes nothing, and makes no Lease."""
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


async def test_who_is_about_to_end_takes_no_lease(leases: Leases, machine: Machine) -> None:
    first, leaving = Candidate("first", leases, machine), Candidate("leaving", leases, machine)
    await first.leader.attempt()
    await leaving.leader.attempt()
    leaving.leader.leave()
    await first.leader.release()
    await leaving.leader.attempt()
    assert not leaving.tenure.leading
    assert set(leases.written) == {"first", ""}
