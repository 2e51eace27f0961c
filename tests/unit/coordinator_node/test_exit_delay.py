"""When a node's coordinator that was told to end may go."""

from __future__ import annotations

from pathlib import Path

import yaml

from gnomon_coordinator.node.agent import SETTLED_S as INSTALLED_SETTLED_S
from gnomon_coordinator.node.agent import ExitDelay

LONGEST_S, SETTLED_S = 50.0, 40.0
BOTH, ONE, NONE = {"u-1", "u-2"}, {"u-1"}, set[str]()


def leaving(at_s: float = 0.0) -> ExitDelay:
    return ExitDelay(at_s, LONGEST_S, SETTLED_S)


def test_without_a_volume_it_goes_at_once() -> None:
    assert leaving(1000.0).may_exit(1000.0, NONE, NONE)


def test_it_stays_for_pods_that_end_and_goes_with_the_last_volume() -> None:
    ends = leaving()
    assert not ends.may_exit(0.0, BOTH, BOTH)
    assert not ends.may_exit(2.0, BOTH, ONE), "a container has ended, its volume is about to go"
    assert not ends.may_exit(3.0, ONE, ONE)
    assert not ends.may_exit(41.0, ONE, ONE), "it is 38 s since the first one went"
    assert not ends.may_exit(42.0, ONE, NONE)
    assert ends.may_exit(42.5, NONE, NONE)


def test_of_an_update_whose_pods_stay_it_goes_once_nothing_has_changed_for_a_while() -> None:
    update = leaving()
    assert not update.may_exit(0.0, BOTH, BOTH)
    assert not update.may_exit(39.9, BOTH, BOTH)
    assert update.may_exit(40.0, BOTH, BOTH)


def test_a_pod_whose_body_is_not_there_is_waited_for_and_not_for_ever() -> None:
    waits = leaving(10.0)
    assert not waits.may_exit(10.0, BOTH, ONE)
    assert not waits.may_exit(59.9, BOTH, ONE)
    assert waits.may_exit(60.0, BOTH, ONE)


def test_a_body_that_has_no_volume_any_more_keeps_nobody() -> None:
    assert leaving().may_exit(0.0, NONE, ONE)


def test_as_it_is_installed_it_ends_by_itself_before_it_is_killed() -> None:
    daemons = Path(__file__).parents[3] / "deploy" / "openfaas" / "coordinator" / "daemonset.yaml"
    pod = yaml.safe_load(daemons.read_text())["spec"]["template"]["spec"]
    [stay_s] = [float(word.partition("=")[2]) for word in pod["containers"][0]["args"] if word.startswith("--stay=")]
    assert INSTALLED_SETTLED_S < stay_s < pod["terminationGracePeriodSeconds"] - 5
