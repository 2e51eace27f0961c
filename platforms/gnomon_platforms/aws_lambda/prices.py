"""What Invokes cost, by core's dated table. BATCH's Eq. 1: seconds × memory × K1 + invocations × K2.

1,769 MB for 120 ms:  0.120 · 1769/1024 · 1.66667e-5 + 2e-7 = 3.66e-6 dollars, 3.66 for a million such batches
"""

from __future__ import annotations

from gnomon_core.prices import LAMBDA_X86, MB_PER_GB

FREE_STORAGE_MB = 512


def invoke_usd(billed_s: float, memory_mb: int, storage_mb: int = FREE_STORAGE_MB) -> float:
    """One Invoke on x86. The first 512 MB of /tmp are free."""
    storage_gb = max(0, storage_mb - FREE_STORAGE_MB) / MB_PER_GB
    return LAMBDA_X86.invoke_usd(billed_s, memory_mb) + billed_s * storage_gb * LAMBDA_X86.usd_per_storage_gb_s
