"""What AWS Lambda sells: memory, from which cores follow. For its platform, the policies that plan for it, and `gnomon plan`."""

from __future__ import annotations

MEGABYTE = 2**20
SMALLEST_MB, LARGEST_MB = 128, 10_240
MB_PER_CORE = 1769
"""One core; the largest size brings 5.79."""
