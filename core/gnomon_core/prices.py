"""What AWS asks for Lambda: the one table that the planner chooses by and that the platform's accounts add up by. US dollars."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LambdaRates:
    """Before any discount, as published on `since`. A GB is 1,024 MB; time is billed by the millisecond."""

    since: str
    source: str
    usd_per_gb_s: float
    usd_per_call: float
    usd_per_storage_gb_s: float


_PAGE = "aws.amazon.com/lambda/pricing, us-east-1"
LAMBDA_X86 = LambdaRates("2025-08-01", _PAGE, usd_per_gb_s=1.66667e-5, usd_per_call=2e-7, usd_per_storage_gb_s=3.09e-8)
"""From that date on the phase before the first Invoke is billed as well."""
LAMBDA_ARM = LambdaRates("2025-08-01", _PAGE, usd_per_gb_s=1.33334e-5, usd_per_call=2e-7, usd_per_storage_gb_s=3.09e-8)
