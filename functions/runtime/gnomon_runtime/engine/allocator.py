"""Keeps freed memory in the process, so that the next batch need not fault it in again.

By default glibc gives large blocks back to the kernel when they are freed. A network frees and asks for the same tens of
megabytes at each operation, and the kernel zeroes each page anew: a third of EfficientNet-Lite0's time at batch 8 (measured: 302
→ 184 ms of CPU on one core). An instance does nothing but run its model, so what it keeps, its peak, is what it will need again.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # malloc.h
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Turn it on for this process; False where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # No block is mapped on its own, the heap never shrinks, and other threads use the same heap.
    return all([mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, _NEVER), mallopt(_ARENA_MAX, 1)])
