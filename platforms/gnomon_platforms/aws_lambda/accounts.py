"""What functions have used and cost, summed over their Invokes."""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_platforms.aws_lambda.prices import CURRENT, Prices
from gnomon_platforms.aws_lambda.reports import Report
from gnomon_platforms.aws_lambda.sizes import cores_of


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

    def plus(self, report: Report, storage_mb: int, prices: Prices = CURRENT) -> Spent:
        """With one more Invoke."""
        billed_s = report.billed_ms / 1000
        return Spent(
            invokes=self.invokes + 1,
            duration_s=self.duration_s + report.duration_ms / 1000,
            billed_s=self.billed_s + billed_s,
            init_s=self.init_s + report.init_ms / 1000,
            cold_starts=self.cold_starts + (report.init_ms > 0),
            cpu_s=self.cpu_s + (report.duration_ms + report.init_ms) / 1000 * cores_of(report.memory_mb),
            cost=self.cost + prices.invoke(billed_s, report.memory_mb, storage_mb),
        )
