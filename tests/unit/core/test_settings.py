"""Functions' settings."""

import re
from pathlib import Path

import pytest

from gnomon_core.functions import read_deployment
from gnomon_core.settings import MOST_DEADLINE_S, SCALE_TABLE, TABLE, ScaleSettings, Setting, Settings, read_settings
from gnomon_core.settings_page import default_text, main, page
from tests.refusals import refused

COMMITTED = Path(__file__).parents[3] / "docs" / "annotations.md"
ALL = (*TABLE, *SCALE_TABLE)
NUMBER = r"\d+(?:\.\d+)?[smh]?"
DIGITS = re.compile(r"[\d.]+")
BOUNDS = re.compile(rf"from ({NUMBER}) to ({NUMBER})")


def usual(setting: Setting) -> Settings | ScaleSettings:
    return Settings() if setting in TABLE else ScaleSettings()


def test_the_committed_page_is_made_from_the_tables(tmp_path: Path) -> None:
    main([str(tmp_path / "annotations.md")])
    made = (tmp_path / "annotations.md").read_text(encoding="utf-8")
    assert made == page()
    assert COMMITTED.read_text(encoding="utf-8") == made, "python -m gnomon_core.settings_page docs/annotations.md makes it"


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.key)
def test_a_setting_has_a_row_of_its_own_with_its_default(setting: Setting) -> None:
    [row] = [line for line in page().splitlines() if line.startswith(f"| `{setting.key}` |")]
    text = default_text(setting, usual(setting))
    assert text or setting.default, "what holds without it is not said"
    assert f"| `{text}`" in row or not text
    if text:
        assert setting.read(text) == pytest.approx(getattr(usual(setting), setting.field))


@pytest.mark.parametrize("setting", [one for one in ALL if BOUNDS.search(one.allowed)], ids=lambda setting: setting.key)
def test_settings_page_states_the_real_bounds(setting: Setting) -> None:
    found = BOUNDS.search(setting.allowed)
    assert found
    (low, high) = found.groups()
    for inside in (low, high):
        setting.read(inside)
    for outside in (DIGITS.sub(below, low), DIGITS.sub(above, high)):
        with pytest.raises(ValueError, match=re.escape(outside)):
            setting.read(outside)


def below(number: re.Match[str]) -> str:
    """One less, or one in the last decimal: 1 is followed by 0, 0.01 by 0, 0 by -1."""
    decimals = len(number[0].partition(".")[2])
    return f"{float(number[0]) - 10**-decimals:g}"


def above(number: re.Match[str]) -> str:
    return str(int(number[0]) + 1)


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.key)
def test_refusals_quote_the_settings_page(setting: Setting) -> None:
    texts = {setting.key: "\n"}
    with refused(hint=setting.allowed):
        read_settings(*((None, texts) if setting in TABLE else (texts, None)))
    assert f"| {setting.allowed}".split("gnomon/")[0] in page()


@pytest.mark.parametrize("name", ["asyfunc", "asyfunc-", "batch", "batch+"])
def test_policies_that_split_or_plan_batches_have_batches_of_eight(name: str) -> None:
    assert read_settings({}, {"gnomon/autoscaler": name}).max_batch == 8
    assert read_settings({}, {"gnomon/autoscaler": name, "gnomon/max-batch": "2"}).max_batch == 2


@pytest.mark.parametrize("name", ["batch-mine", "batch+mine", "batches", "asyfunc-mine", "asyfunc2"])
def test_a_policy_of_ones_own_has_the_usual_defaults_whatever_its_name_begins_with(name: str) -> None:
    assert read_settings({}, {"gnomon/autoscaler": name}) == Settings(autoscaler=name)


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
