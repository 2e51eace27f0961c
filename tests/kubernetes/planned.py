"""A scaling policy of somebody's own that always plans the same buffer, installed as its package would be.

Who carries plans does not ask how good they are, and on a busy machine `batch` has another one at any moment.
"""

from __future__ import annotations

from pathlib import Path

NAME, MOST = "planned", 3
PACKAGE = f"""
from gnomon_core.policy_registry import PolicyPlugin
from gnomon_core.scaling import CreateBody, Decision, SetBufferPlan

PLAN = SetBufferPlan({MOST}, 0.05)


class Planned:
    name, period_s, default_scheduler = "{NAME}", 0.2, "fixed"

    def decide(self, seen, state):
        made = () if seen.live else (CreateBody(seen.settings.cores),)
        changed = () if seen.plan == PLAN else (PLAN,)
        return Decision((*made, *changed), "as ever", max(1, len(seen.live))), state


OFFER = PolicyPlugin(lambda settings: Planned(), "Batches of {MOST}.")
"""


def install(folder: Path) -> Path:
    """Put it there; what is to be on the path."""
    information = folder / f"{NAME}-1.0.dist-info"
    information.mkdir(parents=True)
    (folder / "always_planned.py").write_text(PACKAGE)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[gnomon.scaling_policies]\n{NAME} = always_planned:OFFER\n")
    return folder
