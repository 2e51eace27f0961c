"""The result of a check, and the runner of checks: a check that fails to read its objects does not stop the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.client import Refused, Unreachable


class Level(Enum):
    """The level of a finding: in order, a restriction, or a fault that must be fixed."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `hint` is what to do, empty where nothing is to be done."""

    check: str
    level: Level
    message: str
    hint: str = ""

    @property
    def line(self) -> str:
        """The finding as one line of text."""
        return f"{self.level.value:<4}  {self.check}: {' '.join(f'{self.message} {self.hint}'.split())}"

    @property
    def document(self) -> dict[str, str]:
        """The finding as JSON."""
        return {"check": self.check, "level": self.level.value, "message": self.message, "hint": self.hint}


Check = Callable[[], tuple[Level, str, str]]
"""A check: the level, what is there, and what to do."""


def run_checks(checks: Iterable[tuple[str, Check]], needed: frozenset[str] = frozenset()) -> list[Finding]:
    """Run the checks in order, up to the first failure of a `needed` one, after which the others could read nothing."""
    found: list[Finding] = []
    for name, look in checks:
        found.append(_finding(name, look))
        if name in needed and found[-1].level is Level.FAIL:
            break
    return found


def failed(findings: Iterable[Finding]) -> bool:
    """True if any check failed."""
    return any(finding.level is Level.FAIL for finding in findings)


def _finding(name: str, look: Check) -> Finding:
    try:
        return Finding(name, *look())
    except GnomonError as error:
        return Finding(name, Level.FAIL, error.message, error.hint)
    except Refused as error:
        message = f"The API server refused to say: {error.message}.".replace("..", ".")
        return Finding(name, Level.WARN, message, "Run the check as a user with permission to read this.")
    except Unreachable as error:
        return Finding(name, Level.FAIL, f"The API server does not answer: {error}.", "Check KUBECONFIG and the network.")
