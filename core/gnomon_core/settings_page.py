"""Generate docs/annotations.md from the tables by which settings are read, so that the page cannot go out of date.

python -m gnomon_core.settings_page docs/annotations.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from gnomon_core.settings import SCALE_TABLE, SECTIONS, ScaleSettings, Setting, Settings

HEAD = """\
# Annotations and labels

How a function is served is said by annotations under `gnomon/`, and by OpenFaaS's own labels. There are three places to say it:

- in a stack file: `annotations:` and `labels:` of the function;
- with a deployment: `gnomon deploy … --annotation gnomon/max-batch=8 --label com.openfaas.scale.max=4`, and the same with
  `faas-cli`;
- on Knative: annotations of the Service's template, or of a Revision while it serves ([run on Knative](howto/run-on-knative.md)).
  Knative's own annotations say there what the labels below say elsewhere.

Each may be changed by another deployment while the function serves. A key under `gnomon/` that is not known, and a value that is
not one of those below, are refused: 400 `unknown_setting` or `invalid_setting`, with what is allowed. A duration is written as
`90s`, `5m` or `1h30m`.

A policy of an installed package may have settings of its own, `gnomon/POLICY.…`, which `gnomon policies` lists
([add a policy](howto/add-a-policy.md)).

“Only with” names the scaling policies (`gnomon/autoscaler`) for which a setting changes something. Where it names none, the
setting does not depend on the policy. `gnomon policies` lists the policies, [the glossary](glossary.md) has the words.

This page is made from `core/gnomon_core/settings.py` by `python -m gnomon_core.settings_page docs/annotations.md`.
"""
_KEY = re.compile(r"(?<!`)gnomon/[a-z-]+")
_UNITS = (("h", 3600), ("m", 60), ("s", 1))


def page() -> str:
    """The page, as Markdown."""
    ours = "".join(_section(title, settings, Settings()) for title, settings in SECTIONS)
    return HEAD + ours + _section("OpenFaaS's labels", SCALE_TABLE, ScaleSettings())


def default_text(setting: Setting, usual: Settings | ScaleSettings) -> str:
    """The default of a setting, as a user would write it; empty if there is none."""
    value = getattr(usual, setting.field)
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, tuple):
        return ",".join(value or ())
    if setting.key.endswith("-ms"):
        return f"{value * 1e3:g}"
    return _duration(value) if setting.field.endswith("_s") else f"{value}" if isinstance(value, int | str) else f"{value:g}"


def _section(title: str, settings: Iterable[Setting], usual: Settings | ScaleSettings) -> str:
    rows = "".join(_row(setting, usual) for setting in settings)
    kind = "label" if isinstance(usual, ScaleSettings) else "annotation"
    return f"\n## {title}\n\n| {kind} | value | default | meaning | only with |\n| --- | --- | --- | --- | --- |\n{rows}"


def _row(setting: Setting, usual: Settings | ScaleSettings) -> str:
    written = default_text(setting, usual)
    default = "; ".join(part for part in (written and f"`{written}`", setting.default) if part)
    only_with = ", ".join(f"`{name}`" for name in setting.only_with)
    cells = (setting.key, setting.allowed, default, setting.meaning, only_with)
    return "| " + " | ".join(_KEY.sub(r"`\g<0>`", cell) if cell != setting.key else f"`{cell}`" for cell in cells) + " |\n"


def _duration(seconds: float) -> str:
    """Seconds in the largest unit that they are a whole number of: 900 is 15m."""
    unit, length_s = next(((unit, length_s) for unit, length_s in _UNITS if seconds and seconds % length_s == 0), ("s", 1))
    return f"{seconds / length_s:g}{unit}"


def main(arguments: Sequence[str]) -> None:
    """Write the page to the path in the only argument."""
    [path] = arguments
    Path(path).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
