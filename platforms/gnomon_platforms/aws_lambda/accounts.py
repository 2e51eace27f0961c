"""What functions have used and cost: the sums of what their Invokes reported, and a second opinion from CloudWatch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gnomon_platforms.aws_lambda.channel import Slot
from gnomon_platforms.aws_lambda.reports import Counted, LogTail, Report, counted
from gnomon_platforms.aws_lambda.resources import cores_of, invoke_usd


@dataclass(frozen=True, slots=True)
class Spent:
    """Sums since the platform began. `cpu_s` is what was granted: cores of the memory size × duration."""

    invokes: int = 0
    duration_s: float = 0.0
    billed_s: float = 0.0
    init_s: float = 0.0
    cold_starts: int = 0
    cpu_s: float = 0.0
    cost: float = 0.0
    """Dollars."""

    def plus(self, report: Report, storage_mb: int) -> Spent:
        """With one more Invoke."""
        billed_s = report.billed_ms / 1000
        return Spent(
            invokes=self.invokes + 1,
            duration_s=self.duration_s + report.duration_ms / 1000,
            billed_s=self.billed_s + billed_s,
            init_s=self.init_s + report.init_ms / 1000,
            cold_starts=self.cold_starts + (report.init_ms > 0),
            cpu_s=self.cpu_s + (report.duration_ms + report.init_ms) / 1000 * cores_of(report.memory_mb),
            cost=self.cost + invoke_usd(billed_s, report.memory_mb, storage_mb),
        )


class Accounts:
    """The sums of each function, `name.namespace`. `on_report` gets what each Invoke took."""

    def __init__(self, on_report: Callable[[Report], None] | None) -> None:
        self._on_report = on_report
        self._spent: dict[str, Spent] = {}
        self._remotes: dict[str, set[str]] = {}

    def opened(self, function: str, remote: str) -> None:
        """The function has had this one on Lambda."""
        self._remotes.setdefault(function, set()).add(remote)

    def enter(self, slot: Slot, tail: LogTail) -> None:
        """An Invoke in this slot has ended, and this is the end of its log."""
        for line in tail.lines:
            slot.log(line)
        if tail.report is not None:
            function = slot.instance.function
            self._spent[function] = self.spent(function).plus(tail.report, slot.recipe.storage_mb)
            slot.used_mb = max(slot.used_mb, tail.report.used_mb)
            if self._on_report is not None:
                self._on_report(tail.report)

    def spent(self, function: str) -> Spent:
        """The function's sums."""
        return self._spent.get(function, Spent())

    def counted(self, client: Any, function: str, begin: datetime, end: datetime) -> Counted:
        """What CloudWatch has counted of all that the function has had on Lambda. Blocks.

        Raises:
            GnomonError: 503 `aws_…`.

        """
        found = [counted(client, remote, begin, end) for remote in sorted(self._remotes.get(function, ()))]
        return Counted(
            sum(one.invocations for one in found),
            sum(one.errors for one in found),
            sum(one.throttles for one in found),
            sum(one.duration_s for one in found),
        )
