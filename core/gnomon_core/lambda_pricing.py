"""AWS Lambda's offer and prices: memory sizes, the cores that come with them, and prices in US dollars.

One table for the platform and its accounts, for the policies and `gnomon plan` that choose by it, and for the simulator's costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MB_PER_GB = 1024
SMALLEST_MB, LARGEST_MB = 128, 10_240
"""Memory sizes that a function may have."""
MB_PER_CORE = 1769
"""Memory that brings one core; the largest size brings 5.79."""


@dataclass(frozen=True, slots=True)
class LambdaRates:
    """The prices before any discount, as published on `since`. A GB is 1,024 MB; time is billed by the millisecond."""

    since: str
    source: str
    usd_per_gb_s: float
    usd_per_call: float
    usd_per_storage_gb_s: float

    def invoke_usd(self, seconds: float, memory_mb: int) -> float:
        """Cost of an Invoke in US dollars, rounded up to whole milliseconds: BATCH's Eq. 1, s × GB × K1 + K2."""
        # 0.213 s are 213.00000000000003 ms: what is a whole millisecond but for its last digits is one.
        billed_s = math.ceil(round(seconds * 1e3, 6)) / 1e3
        return billed_s * memory_mb / MB_PER_GB * self.usd_per_gb_s + self.usd_per_call


_PAGE = "aws.amazon.com/lambda/pricing, us-east-1"
LAMBDA_X86 = LambdaRates("2025-08-01", _PAGE, usd_per_gb_s=1.66667e-5, usd_per_call=2e-7, usd_per_storage_gb_s=3.09e-8)
"""Prices of x86 functions. Since this date the INIT phase, before the first Invoke, is billed too."""
LAMBDA_ARM = LambdaRates("2025-08-01", _PAGE, usd_per_gb_s=1.33334e-5, usd_per_call=2e-7, usd_per_storage_gb_s=3.09e-8)
