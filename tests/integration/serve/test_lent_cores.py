"""`gnomon` on a running gateway: Bodies of two functions borrow the machine's cores, and give them up at a switch of policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.serve.bursting import MODEL, WITHIN, Function, function, put_network, served
from tests.integration.serve.load import Load
from tests.kubernetes.measured import in_a_hurry
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]
CALLERS = 4
BORROWS = {"max_cores": "2", "autoscaler": "gnomon"}


def cores(function: Function) -> list[tuple[int, int | None]]:
    """The cores of each Body, and those that it keeps between batches."""
    return [(body["cores"], body.get("idle_cores")) for body in function.now()["bodies"]]


def switch(function: Function, policy: str) -> None:
    annotations = in_a_hurry(MODEL, function.line.sample_s, WITHIN) | {"gnomon/max-cores": "2", "gnomon/autoscaler": policy}
    document = {"service": function.name, "image": "gnomon/body", "labels": {"com.openfaas.scale.max": "1"}}
    answer = function.serving.call("PUT", "/system/functions", document | {"annotations": annotations})
    assert answer.status in (200, 202), answer.data


def test_bodies_of_two_functions_borrow_cores_until_another_policy_takes_over(tmp_path: Path) -> None:
    line = put_network(tmp_path / "models", CALLERS, 64)
    with (
        served(line, tmp_path / "state", 2, "--lend-cores") as serving,
        function(serving, line, "left", **BORROWS) as left,
        function(serving, line, "right", **BORROWS) as right,
    ):
        assert cores(left) == cores(right) == [(2, 1)]
        [body] = left.ready("bodies")
        with Load(left.ask, CALLERS) as left_load, Load(right.ask, CALLERS) as other:
            left_load.more(5 * CALLERS)
            other.more(5 * CALLERS)
            switch(left, "kpa")
            eventually(lambda: cores(left) == [(1, None)], "its Body still borrows")
            left_load.more(5 * CALLERS)
            switch(left, "gnomon")
            eventually(lambda: cores(left) == [(2, 1)], "its Body does not borrow again")
            assert set(left_load.stop()) == {"ok"}
            assert set(other.stop()) == {"ok"}
        assert left.ready("bodies") == [body], "it served all the while"
