"""docs/annotations.md says of each setting what reading it does: its bounds hold, and its default is what holds without it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.settings import SCALE_TABLE, TABLE, ScaleSettings, Setting, Settings, read_settings
from gnomon_core.settings_page import default_text, main, page

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
def test_its_bounds_are_those_that_are_said(setting: Setting) -> None:
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
def test_what_is_refused_is_told_as_the_page_tells_it(setting: Setting) -> None:
    texts = {setting.key: "\n"}
    with pytest.raises(GnomonError) as refused:
        read_settings(*((None, texts) if setting in TABLE else (texts, None)))
    assert setting.allowed in refused.value.hint
    assert f"| {setting.allowed}".split("gnomon/")[0] in page()
