"""What is written next for a function. A small cluster carries plans out, in any order and at any speed, and nobody is lost."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from gnomon_platforms.kubernetes.objects.functions import DeployedFunction
from gnomon_platforms.kubernetes.objects.pods import ENDED_PHASES
from gnomon_platforms.openfaas.planning import (
    VICTIM_COST,
    Claim,
    Deploy,
    Guard,
    Release,
    Remove,
    Resize,
    Retire,
    Scale,
    Serve,
    Step,
    Waiting,
    Wanted,
    Withdraw,
    plan,
)
from tests.unit.kubernetes_platform.small_cluster import SmallCluster, deployed, running, spare


def waiting(*ids: str) -> tuple[Waiting, ...]:
    return tuple(Waiting(one, "n1") for one in ids)


def kinds(steps: Iterable[Step]) -> list[str]:
    return [type(step).__name__ for step in steps]


def test_a_function_is_deployed_when_its_first_instance_is_asked_for() -> None:
    assert plan(None, [], Wanted(1)) == ()
    assert plan(None, [], Wanted(1, waiting("a", "b"))) == (Deploy(2),)


def test_the_number_is_raised_for_those_that_have_no_spare_and_only_once() -> None:
    pods = [running("p1", "a"), spare("p2")]
    wanted = Wanted(1, waiting("b", "c"), {"p1": 1})
    steps = plan(deployed(2), pods, wanted)
    assert kinds(steps) == ["Claim", "Scale"]
    assert Scale(3) in steps
    # The ReplicaSet has not made the third yet: nothing is asked for twice.
    assert kinds(plan(deployed(3), pods, wanted)) == ["Claim"]


def test_healthy_pods_that_are_kept_serve_and_get_their_cores() -> None:
    pod = running("p1", "a", serving=False, ready=False)
    assert plan(deployed(1), [pod], Wanted(1, (), {"p1": 1})) == (Serve(pod),)
    assert plan(deployed(1), [pod], Wanted(1, (), {"p1": 2})) == (Resize(pod, 2),)


def test_a_victim_is_retired_then_released_then_removed_and_its_spare_goes() -> None:
    kept, victim = running("p1", "a"), running("p2", "b")
    wanted = Wanted(1, (), {"p1": 1})
    assert plan(deployed(2), [kept, victim], wanted) == (Retire(victim),)
    victim = replace(victim, serving=False, deletion_cost=VICTIM_COST)
    assert plan(deployed(2), [kept, victim], wanted) == (Release(victim, "uid-d"),)
    victim = replace(victim, released=True)
    # The number stays until the ReplicaSet has noticed, and has made a spare: only then is it certain whom it would remove.
    assert plan(deployed(2), [kept, victim], wanted) == (Remove(victim),)
    assert plan(deployed(2), [kept, replace(victim, ending=True)], wanted) == ()
    assert plan(deployed(2, available=1), [kept, spare("p3")], wanted) == (Scale(1),)
    assert plan(deployed(1), [kept], wanted) == ()


def test_a_spare_stays_while_the_replica_set_might_take_another_for_it() -> None:
    # What it knows may be from before the claim, when both were spares.
    starting = replace(running("p2", "b"), node=None, phase="Pending", healthy=False, ready=False, serving=False, cores=0.0)
    assert plan(deployed(2), [starting, spare("p3")], Wanted(1, (), {"p2": 1})) == ()


def test_spares_that_nobody_waits_for_go_and_burden_no_node() -> None:
    assert plan(deployed(2, available=1), [running("p1", "a"), spare("p2")], Wanted(1, (), {"p1": 1})) == (Scale(1),)


def test_another_version_releases_what_serves_before_the_template_changes() -> None:
    old = running("p1", "a")
    wanted = Wanted(2, waiting("b"), {"p1": 1})
    assert plan(deployed(1), [old], wanted) == (Release(old, "uid-d"),)
    # The ReplicaSet may not know of it yet, and would count it among those of the old template; its spare tells that it does.
    assert plan(deployed(1), [replace(old, released=True)], wanted) == ()
    assert plan(deployed(1), [replace(old, released=True), spare("p2")], wanted) == (Deploy(1),)
    # It serves on until its instance is destroyed.
    assert plan(deployed(1, 2), [replace(old, released=True), replace(spare("p2"), version=2)], wanted) == (
        Claim(replace(spare("p2"), version=2), wanted.waiting[0]),
    )
    assert plan(deployed(1, 2), [replace(old, released=True)], Wanted(2)) == (Remove(replace(old, released=True)),)


def test_a_template_that_others_change_costs_no_pod_that_serves_and_is_an_update() -> None:
    """`kubectl rollout restart`: one new pod waits behind its gate, and we replace the others as in an update."""
    old, gated = running("p1", "a"), spare("p2")
    restarted = replace(deployed(1, available=1), rolled=False)
    assert plan(restarted, [old], Wanted(1, (), {"p1": 1})) == ()
    assert plan(restarted, [old, gated], Wanted(1, (), {"p1": 1})) == (), "the new one is not lowered away"
    wanted = Wanted(2, waiting("b"), {"p1": 1})
    # The pod that is made beside the others may still be to come: the ReplicaSets' count is not known before.
    assert plan(restarted, [old], wanted) == ()
    assert plan(restarted, [old, gated], wanted) == (Release(old, "uid-d"),)
    released = replace(old, released=True)
    assert plan(restarted, [released, gated, spare("p3")], wanted) == (Deploy(1),)


def test_the_template_is_guarded_when_all_pods_have_it() -> None:
    kept, changing = running("p1", "a"), replace(deployed(1, available=1), guarded=False, rolled=False)
    wanted = Wanted(1, (), {"p1": 1})
    assert plan(changing, [kept], wanted) == ()
    assert plan(replace(changing, rolled=True), [kept], wanted) == (Guard(1),)
    assert plan(replace(changing, rolled=True), [kept, spare("p2")], replace(wanted, waiting=waiting("b")))[-1] != Guard(1)
    assert plan(replace(changing, rolled=True, guarded=True), [kept], wanted) == ()


def test_after_a_restart_pods_that_run_are_given_out_again() -> None:
    left = running("p1", "of an earlier process")
    wanted = Wanted(1, waiting("a"), adopting=True)
    assert plan(deployed(1), [left], wanted) == (Claim(left, wanted.waiting[0]),)
    # Nobody asks for it yet; when nobody has, it goes.
    assert plan(deployed(1), [left], Wanted(1, adopting=True)) == ()
    assert Retire(left) in plan(deployed(1), [left], Wanted(1))
    # One that has just crashed is not used again.
    assert kinds(plan(deployed(1), [left], replace(wanted, going=frozenset({"p1"})))) == ["Scale"]


def test_a_spare_that_is_about_to_be_removed_is_kept_before_it_is_given_out() -> None:
    # The number was lowered because nobody wanted it, and the ReplicaSet has not acted yet.
    wanted = Wanted(1, waiting("a"))
    assert plan(deployed(0), [spare("p1")], wanted) == (Scale(1),)
    assert plan(deployed(1), [spare("p1")], wanted) == (Claim(spare("p1"), wanted.waiting[0]),)


@pytest.mark.parametrize("phase", ENDED_PHASES)
def test_a_pod_that_has_ended_by_itself_is_removed_and_nothing_of_the_function_stays_for_it(phase: str) -> None:
    """The kubelet evicts a pod, or refuses one. A ReplicaSet counts it no longer and makes another, but never removes it."""
    evicted = running("p1", "a", phase=phase, healthy=False, ready=False)
    assert plan(deployed(1), [evicted], Wanted(1, (), {"p1": 1})) == (), "it is about to be told of"
    assert plan(deployed(1), [evicted, spare("p2")], Wanted(1, waiting("b"), going=frozenset({"p1"}))) == (
        Remove(evicted),
        Claim(spare("p2"), Waiting("b", "n1")),
    )
    assert plan(deployed(1), [replace(evicted, ending=True)], Wanted(1, (), going=frozenset({"p1"}))) == ()
    removed = replace(deployed(1), removed=True)
    assert plan(removed, [evicted], Wanted(1, going=frozenset({"p1"}))) == (Remove(evicted),)
    assert plan(removed, [], Wanted(1)) == (Withdraw(),)


def test_a_spare_is_not_given_out_while_a_lowered_number_may_cost_it() -> None:
    """Of three the spare is to go, and another one fails: a ReplicaSet that has not heard of that counts three still."""
    kept, other, left = running("p1", "a"), running("p2", "b"), spare("p3")
    [step] = plan(deployed(3, available=2), [kept, other, left], Wanted(1, (), {"p1": 1, "p2": 1}))
    assert step == Scale(2)
    assert isinstance(step, Scale)
    failed = replace(other, phase="Failed", healthy=False, ready=False)
    wanted = Wanted(1, waiting("c"), {"p1": 1}, lowered=step.lowered)
    assert plan(deployed(2, available=2), [kept, failed, left], wanted) == (Remove(failed), Scale(3))
    assert plan(deployed(2, available=2), [kept, left], wanted) == (Scale(3),), "nor when it is there no more"
    assert plan(deployed(3, available=2), [kept, left], wanted) == (Scale(3),), "nor by a number from before"
    assert plan(deployed(3, available=2), [kept, left], replace(wanted, lowered=None)) == (Claim(left, wanted.waiting[0]),)
    # It has acted: it has no more than it should, and makes one for the one that failed.
    assert plan(deployed(2, available=1), [kept], wanted) == ()
    assert plan(deployed(2, available=1), [kept, spare("p4")], wanted) == (Claim(spare("p4"), wanted.waiting[0]),)


def test_an_instance_is_given_the_same_pod_until_it_is_seen_to_have_it() -> None:
    """The claim was carried out, and is not seen yet. By another one the instance would have two pods, and lose one."""
    first, second = spare("p2"), spare("p1")
    asked, other = Waiting("a", "n1", "p2"), Waiting("b", "n1")
    steps = plan(deployed(2), [first, second], Wanted(1, (other, asked)))
    assert steps == (Claim(second, other), Claim(first, asked))
    # The pod has gone, or is somebody else's by now: it gets another.
    assert plan(deployed(1), [second], Wanted(1, (asked,))) == (Claim(second, asked),)
    lost = running("p2", "c", node="n2")
    assert plan(deployed(2), [lost, second], Wanted(1, (asked,)))[0] == Claim(second, asked)


def test_a_pod_of_an_instance_that_was_stopped_before_it_was_seen_is_given_to_nobody_else() -> None:
    """A plan that was made a moment ago may let it go still."""
    left = running("p1", "stopped")
    assert plan(deployed(1), [left], Wanted(1, waiting("b"))) == (Scale(2),)
    assert kinds(plan(deployed(2), [left, spare("p2")], Wanted(1, waiting("b")))) == ["Claim", "Retire"]


def starved(replicas: int, counted: int, available: int, version: int = 1) -> DeployedFunction:
    """A quota has no room for more pods."""
    return replace(deployed(replicas, version, available), counted=counted, failure="FailedCreate: exceeded quota: pods")


def test_another_version_is_deployed_at_once_where_no_pod_of_the_last_one_could_be_made() -> None:
    wanted = Wanted(2, waiting("b"))
    assert plan(deployed(1), [], wanted) == (Deploy(1),)
    serving = running("p1", "a", released=True)
    assert plan(deployed(2), [serving], replace(wanted, kept={"p1": 1})) == (), "the ReplicaSet may not know that it was released"


def test_a_victim_goes_although_a_quota_lets_no_spare_be_made_for_it() -> None:
    kept, victim = running("p1", "a"), running("p2", "b", serving=False, ready=False, deletion_cost=VICTIM_COST)
    wanted = Wanted(1, (), {"p1": 1})
    assert plan(starved(3, 2, 1), [kept, victim], wanted) == (Release(victim, "uid-d"),)
    assert plan(starved(3, 2, 2), [kept, victim], wanted) == (), "what it says is older than the victim's being unready"
    assert plan(starved(3, 3, 1), [kept, victim], wanted) == (), "it has another one, which is not seen yet"
    # Its place is taken by a spare, or by somebody else's pod.
    assert plan(starved(3, 2, 1), [kept, spare("p3")], wanted) == (Scale(1),)
    assert plan(starved(3, 1, 1), [kept], wanted) == (Scale(1),)
    starting = running("p1", "a", ready=False)
    assert plan(starved(3, 1, 0), [starting], wanted) == (), "a pod that was made just now might be taken for it"


def test_a_victim_makes_room_for_whoever_waits_where_a_quota_has_none() -> None:
    kept, victim = running("p1", "a"), running("p2", "b")
    wanted = Wanted(1, waiting("c"), {"p1": 1})
    assert plan(starved(3, 2, 2), [kept, victim], wanted) == (Retire(victim),)
    victim = replace(victim, serving=False, ready=False, deletion_cost=VICTIM_COST)
    assert plan(starved(3, 2, 1), [kept, victim], wanted) == (Release(victim, "uid-d"),)


def test_an_update_goes_on_where_a_quota_lets_no_spare_be_made() -> None:
    old = running("p1", "a")
    wanted = Wanted(2, waiting("b"), {"p1": 1})
    assert plan(starved(2, 1, 1), [old], wanted) == (Release(old, "uid-d"),)
    old = replace(old, released=True)
    assert plan(starved(2, 1, 1), [old], wanted) == (), "it has not heard of the release"
    assert plan(starved(2, 1, 1), [old, spare("p2")], wanted) == (), "nor here: it had the old one before it made the spare"
    assert plan(starved(2, 1, 0), [old, spare("p2")], wanted) == (Deploy(1),)
    assert plan(starved(2, 0, 0), [old], wanted) == (Deploy(1),)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("quota", [None, 3, 6])
def test_only_victims_are_removed_in_any_order(quota: int | None, seed: int) -> None:
    chance = random.Random(seed)
    cluster = SmallCluster(chance, quota)
    living: dict[str, int] = {}
    ids, version = itertools.count(), 1
    under_way: list[tuple[Step, int]] = []
    for moment in range(900):
        if moment < 500 and chance.random() < 0.08:
            if living and chance.random() < 0.45:
                del living[chance.choice(sorted(living))]
            else:
                version += chance.random() < 0.15
                living[f"i{next(ids)}"] = version
        elif moment == 500:
            for one in sorted(living)[quota or len(living) :]:
                del living[one]
        owners = {pod.instance: pod.name for pod in cluster.pods.values() if pod.instance and not pod.ending}
        kept: dict[str, int | None] = {owners[one]: 1 for one in living if one in owners}
        mine = tuple(Waiting(one, "n1") for one, wanted in living.items() if one not in owners and wanted == version)
        # An instance of an older version that has no pod when the next one comes is given up, as its start would be.
        for one in [one for one, wanted in living.items() if one not in owners and wanted != version]:
            del living[one]
        if not under_way:
            steps = plan(cluster.deployed, cluster.pods.values(), Wanted(version, mine, kept))
            under_way = [(step, version) for step in steps]
            chance.shuffle(under_way)
        elif chance.random() < 0.6:
            cluster.carry_out(*under_way.pop())
        cluster.tick()
        for pod in cluster.removed:
            assert pod.instance not in living, f"at {moment}: {pod.name} was lost to {pod.instance}"
        cluster.removed.clear()
    owners = {pod.instance: pod for pod in cluster.pods.values() if pod.instance and not pod.ending}
    assert set(owners) == set(living)
    assert all(pod.released or (pod.serving and pod.ready) for pod in owners.values())
    assert len(cluster.pods) == len(living)
