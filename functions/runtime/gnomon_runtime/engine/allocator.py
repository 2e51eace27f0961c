"""Keeps freed memory in the process, so that the next batch need not fault it in again.

By default allocators give large blocks back to the kernel when they are freed, glibc at once and jemalloc after seconds. A
network frees and asks for the same tens of megabytes at each operation, and the kernel zeroes each page anew: a third of
EfficientNet-Lite0's time at batch 8 with glibc (measured: 302 → 184 ms of CPU on one core). An instance does nothing but run its
model, so what it keeps, its peak, is what it will need again. Which allocator a process has is decided when it starts
(gnomon_core.libraries).
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # malloc.h
_INT_MAX = 2**31 - 1
_DECAY = (b"arenas.dirty_decay_ms", b"arenas.muzzy_decay_ms", b"arena.0.dirty_decay_ms", b"arena.0.muzzy_decay_ms")
"""Of arenas to come, and of the one that is there."""
_NEVER = -1


def keep_freed_memory() -> bool:
    """Turn it on for this process; False where the allocator is neither glibc's nor jemalloc."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallctl"):
        return _set_decay(library)
    if hasattr(library, "mallopt"):
        # No block is mapped on its own, the heap never shrinks, and other threads use the same heap.
        return all([library.mallopt(_MMAP_MAX, 0), library.mallopt(_TRIM_THRESHOLD, _INT_MAX), library.mallopt(_ARENA_MAX, 1)])
    return False


def _set_decay(jemalloc: ctypes.CDLL) -> bool:
    never = ctypes.c_ssize_t(_NEVER)
    size = ctypes.c_size_t(ctypes.sizeof(never))
    return not any(jemalloc.mallctl(name, None, None, ctypes.byref(never), size) for name in _DECAY)
