"""Memory is the one size that a Lambda function has: cores come with it, 1,769 MB for each.

    gnomon/cores 1 ▶ 1,769 MB     2 ▶ 3,538 MB     5 ▶ 8,845 MB     the largest: 10,240 MB, 5.79 cores

A function's memory limit asks for no less than it says, the annotation gnomon/memory-mb for exactly what it says: BATCH's plans
choose memory sizes that are no whole cores.
"""

from __future__ import annotations

import math

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec
from gnomon_core.memory_sizes import LARGEST_MB, MB_PER_CORE, MEGABYTE, SMALLEST_MB

SMALLEST_STORAGE_MB = 512
"""Of /tmp, which is what a function has without asking."""


def memory_mb(spec: FunctionSpec, cores: int, asked_mb: int | None = None) -> int:
    """The memory size of an instance: the one that is asked for, else the function's own with so many cores.

    Raises:
        GnomonError: 503 `no_capacity`: Lambda has none that large.

    """
    wanted = asked_mb or spec.settings.memory_mb
    if wanted is None:
        limit_mb = math.ceil((spec.memory_bytes or 0) / MEGABYTE)
        by_cores = max(cores, spec.cpu_cores or 0) * MB_PER_CORE
        # 6 cores are what Lambda shows at its largest size, though they are worth 5.79.
        wanted = max(SMALLEST_MB, limit_mb, LARGEST_MB if cores == math.ceil(LARGEST_MB / MB_PER_CORE) else math.ceil(by_cores))
    if not SMALLEST_MB <= wanted <= LARGEST_MB:
        raise GnomonError(
            503,
            "no_capacity",
            f"An instance of {wanted} MB does not fit: Lambda's functions have {SMALLEST_MB} to {LARGEST_MB} MB.",
            f"Ask for at most {LARGEST_MB // MB_PER_CORE} cores, at {MB_PER_CORE} MB each.",
        )
    return wanted


def cores_of(memory_mb_: int) -> float:
    """The cores that a memory size brings: 885 MB are half of one."""
    return memory_mb_ / MB_PER_CORE
