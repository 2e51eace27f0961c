"""What Invokes cost, by a dated table. BATCH's Eq. 1: seconds × memory × K1 + invocations × K2.

1,769 MB for 120 ms:  0.120 · 1769/1024 · 1.66667e-5 + 2e-7 = 3.66e-6 dollars, 3.66 for a million such batches
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars for Lambda on x86 before any discount; a GB is 1,024 MB, time is billed by the millisecond."""

    as_of: str
    region: str
    per_gb_s: float
    per_invoke: float
    per_storage_gb_s: float

    def invoke(self, billed_s: float, memory_mb: int, storage_mb: int = 512) -> float:
        """One Invoke. The first 512 MB of /tmp are free."""
        storage_gb = max(0, storage_mb - 512) / 1024
        return billed_s * (memory_mb / 1024 * self.per_gb_s + storage_gb * self.per_storage_gb_s) + self.per_invoke


CURRENT = Prices("2025-08-01", "us-east-1", per_gb_s=1.66667e-5, per_invoke=2e-7, per_storage_gb_s=3.09e-8)
"""As AWS listed them at that date, from which on the phase before the first Invoke is billed as well."""
