"""Keeps freed memory in the process, so that the next batch need not fault it in again.

By default allocators give large blocks back to the kernel when they are freed, glibc at once and jemalloc after seconds. A
network frees and asks for the same tens of megabytes at each operation, and the kernel zeroes each page anew: a third of
EfficientNet-Lite0's time at batch 8 with glibc (measured: 302 → 184 ms of CPU on one core). An instance does nothing but run its
model, so what it keeps, its peak, is what it will need again. Which allocator a process has is decided when it starts
(gnomon_core.packaging).

The open inference protocol's datatypes as torch's.

How much a program may use before it is refused.

The few names of torch that are private but have no public equivalent, in one place.

`bindings` are the generated Python bindings that `torch.nn.functional` wraps; `callable_of` is what an overload's own call method
calls; the schema is what `print(overload)` shows.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # malloc.h
_INT_MAX = 2**31 - 1
_DECAY = (b"arenas.dirty_decay_ms", b"arenas.muzzy_decay_ms", b"arena.0.dirty_decay_ms", b"arena.0.muzzy_decay_ms")
"""jemalloc's decay times: of arenas to come, and of the one that exists."""
_NEVER = -1


def keep_freed_memory() -> bool:
    """Have this process's allocator keep freed memory; False where it is neither glibc's nor jemalloc."""
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


TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool, "UINT8": torch.uint8, "UINT16": torch.uint16, "UINT32": torch.uint32, "UINT64": torch.uint64,
    "INT8": torch.int8, "INT16": torch.int16, "INT32": torch.int32, "INT64": torch.int64,
    "FP16": torch.float16, "BF16": torch.bfloat16, "FP32": torch.float32, "FP64": torch.float64,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that hold before an operation allocates.

    `max_elements` bounds one value (1 Gi elements: 4 GiB of float32), `max_live_bytes` the values that are alive together,
    weights and inputs not counted. ResNet50 at batch 16 needs 0.2 GiB.
    """

    max_elements: int = 1 << 30
    max_live_bytes: int = 16 << 30


aten: Any = torch.ops.aten
bindings: Any = torch._C._nn  # noqa: SLF001 - see above


def callable_of(overload: Any) -> Callable[..., Any]:
    """An overload without its Python frame."""
    called: Callable[..., Any] = overload._op  # noqa: SLF001
    return called


def schema_of(overload: Any) -> Any:
    """An overload's schema."""
    return overload._schema  # noqa: SLF001
