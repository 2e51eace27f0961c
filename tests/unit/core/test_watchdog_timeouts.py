"""What OpenFaaS's timeouts in a function's environment mean for its requests."""

import pytest

from gnomon_core.functions import read_deployment
from gnomon_core.settings import MOST_DEADLINE_S, Settings


def settings(process: str = "", annotations: dict[str, str] | None = None, **variables: str) -> Settings:
    document = {"service": "f", "image": "i", "envProcess": process, "envVars": variables, "annotations": annotations or {}}
    return read_deployment(document).settings


@pytest.mark.parametrize(
    ("variables", "deadline_s"),
    [
        ({}, 30.0),
        ({"exec_timeout": "60s", "read_timeout": "60s", "write_timeout": "60s"}, 60.0),
        ({"exec_timeout": "1m30s"}, 90.0),
        ({"exec_timeout": "45"}, 45.0),
        ({"write_timeout": "2m"}, 120.0),
        ({"read_timeout": "40s"}, 40.0),
        ({"exec_timeout": "60s", "write_timeout": "20s"}, 20.0),
        ({"read_timeout": "5s", "write_timeout": "60s"}, 60.0),
        ({"exec_timeout": "0", "write_timeout": "50s"}, 50.0),
        ({"exec_timeout": "0s"}, 30.0),
        ({"exec_timeout": "soon", "read_timeout": "", "write_timeout": "-3s"}, 30.0),
        ({"exec_timeout": "500h"}, MOST_DEADLINE_S),
    ],
)
def test_the_watchdogs_timeouts_are_the_deadline_where_none_is_said(variables: dict[str, str], deadline_s: float) -> None:
    assert settings(**variables).deadline_s == deadline_s


def test_gnomons_own_deadline_comes_first() -> None:
    assert settings(annotations={"gnomon/deadline-ms": "1500"}, exec_timeout="60s").deadline_s == 1.5


def test_the_objective_follows_the_deadline_unless_it_is_said() -> None:
    assert settings(exec_timeout="60s").slo_s == 60.0
    assert settings(annotations={"gnomon/slo-ms": "200"}, exec_timeout="60s").slo_s == 0.2


def test_a_program_for_each_request_is_ended_by_its_watchdog_before_the_gateway_answers() -> None:
    assert settings("sh", exec_timeout="2s").deadline_s == 3.0
