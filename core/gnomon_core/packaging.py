"""Hints for installing a missing part of Gnomon, and the environment in which processes compute.

Gnomon is installed from a clone of its repository; the package `gnomon` of a package index is another project's. The parts of
Gnomon are the extras of pyproject.toml; `how_to_install` is the one sentence of all hints.

A process that computes, or that is forked into some that do, gets an environment that its libraries read when they start. Where
jemalloc is installed (Debian's libjemalloc2), it is the memory allocator. A network asks for tensors of the same sizes
again and again, and gets the place that was freed last, which is in the cache; in glibc's heap a batch lies wherever larger ones
have left room. `gnomon doctor` says which one a machine has.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnomon_core.errors import GnomonError


def how_to_install(extra: str) -> str:
    """A sentence that tells a user how to install this extra, such as `models`."""
    return f"In a clone of Gnomon, in the environment that runs it: pip install '.[{extra}]'."


def import_package(module: str, extra: str) -> Any:
    """Import a module of a package that this extra brings.

    Raises:
        GnomonError: 422 `model_package_missing`, with how to install it.

    """
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        message = f"The Python package {package} is not installed."
        raise GnomonError(422, "model_package_missing", message, how_to_install(extra)) from None


_JEMALLOC = "libjemalloc.so.2"
_JEMALLOC_OPTIONS = "thp:always,narenas:1,oversize_threshold:0"
"""Huge pages, as GLIBC_TUNABLES below asks for them; what one thread freed, another one may use; and blocks from 8 MiB on are not
given back at once, as they are by default, their pages to be zeroed anew."""


def jemalloc(root: Path = Path("/usr")) -> Path | None:
    """Path of the jemalloc library as Linux distributions install it; None if it is missing."""
    return next((place for place in _places(root) if place.is_file()), None)


def for_libraries(allocator: Path | None) -> dict[str, str]:
    """The variables, with `allocator` to be loaded before all other libraries."""
    variables = {
        # Those that start threads when they are imported would make a zygote's forks hang; an instance sets its own number.
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        # The threads of a batch wait for each other at each operation: for about 30 µs they spin, then they sleep. By default
        # they spin for 3 ms. A thread that spins holds its CPU: beside busy processes a batch of ResNet50 took five times as long
        # on two threads as on one. Now it takes no longer (`python -m benchmarks.spinning`).
        "GOMP_SPINCOUNT": "3000",
        # Weights and activations in pages of 2 MiB, where the kernel has them for who asks: a product with 201 MB of weights
        # waits less for page tables (44 → 38 ms a batch of 16 on a Xeon, ResNet50 3 to 6 %).
        #
        # Blocks from 1 MiB on are copied past the cache: a Body hands 64 MB over in 6 ms in place of 10. By default glibc
        # takes three quarters of the cache for large, which on a processor that shares 480 MiB between machines nothing ever is.
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.cpu.x86_non_temporal_threshold=0x100000",
    }
    if allocator is not None:
        variables |= {"LD_PRELOAD": str(allocator), "MALLOC_CONF": _JEMALLOC_OPTIONS}
    return variables


def _places(root: Path) -> Iterator[Path]:
    yield from sorted(root.glob(f"lib/*-linux-gnu/{_JEMALLOC}"))
    yield from (root / folder / _JEMALLOC for folder in ("lib64", "lib", "local/lib"))


FOR_LIBRARIES: Mapping[str, str] = for_libraries(jemalloc())
"""The variables for this machine. Libraries read them only when a process starts."""
