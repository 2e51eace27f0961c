"""When a node's coordinator that was told to end may go."""

from pathlib import Path

import yaml

from gnomon_coordinator.node.agent import SETTLED_S as INSTALLED_SETTLED_S
from gnomon_coordinator.node.agent import ExitDelay

LONGEST_S, SETTLED_S = 50.0, 40.0
BOTH, ONE, NONE = {"u-1", "u-2"}, {"u-1"}, set[str]()


def leaving(at_s: float = 0.0) -> ExitDelay:
    return ExitDelay(at_s, LONGEST_S, SETTLED_S)


def test_agent_without_volumes_exits_at_once() -> None:
    assert leaving(1000.0).may_exit(1000.0, NONE, NONE)


def test_agent_exits_with_the_last_volume_of_ending_pods() -> None:
    ends = leaving()
    assert not ends.may_exit(0.0, BOTH, BOTH)
    assert not ends.may_exit(2.0, BOTH, ONE), "a container has ended, its volume is about to go"
    assert not ends.may_exit(3.0, ONE, ONE)
    assert not ends.may_exit(41.0, ONE, ONE), "it is 38 s since the first one went"
    assert not ends.may_exit(42.0, ONE, NONE)
    assert ends.may_exit(42.5, NONE, NONE)


def test_agent_exits_in_an_update_once_nothing_changes() -> None:
    update = leaving()
    assert not update.may_exit(0.0, BOTH, BOTH)
    assert not update.may_exit(39.9, BOTH, BOTH)
    assert update.may_exit(40.0, BOTH, BOTH)


def test_agent_waits_a_bounded_time_for_a_pod_without_a_body() -> None:
    waits = leaving(10.0)
    assert not waits.may_exit(10.0, BOTH, ONE)
    assert not waits.may_exit(59.9, BOTH, ONE)
    assert waits.may_exit(60.0, BOTH, ONE)


def test_body_without_a_volume_does_not_delay_the_exit() -> None:
    assert leaving().may_exit(0.0, NONE, ONE)


def test_installed_delay_is_shorter_than_the_grace_period() -> None:
    daemons = Path(__file__).parents[3] / "deploy" / "openfaas" / "coordinator" / "daemonset.yaml"
    pod = yaml.safe_load(daemons.read_text())["spec"]["template"]["spec"]
    [stay_s] = [float(word.partition("=")[2]) for word in pod["containers"][0]["args"] if word.startswith("--stay=")]
    assert INSTALLED_SETTLED_S < stay_s < pod["terminationGracePeriodSeconds"] - 5
