"""What an instance frees stays in the process, whichever allocator it was started with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gnomon_core.packaging import for_libraries, jemalloc

PROGRAM = """
import ctypes, pathlib
from gnomon_runtime.engine.torch_support import keep_freed_memory

def resident_mib():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes, library.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
kept = keep_freed_memory()
begun = resident_mib()
for _ in range(3):
    block = library.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    library.free(block)
print(kept, hasattr(library, "mallctl"), resident_mib() - begun)
"""


@pytest.mark.parametrize("allocator", [None, jemalloc()], ids=["glibc", "jemalloc"])
def test_a_block_that_was_freed_is_neither_given_back_nor_taken_twice(
    allocator: Path | None, request: pytest.FixtureRequest
) -> None:
    if allocator is None and "jemalloc" in request.node.name:
        pytest.skip("jemalloc is not installed here: apt-get install libjemalloc2")
    environment = {**os.environ, **for_libraries(allocator)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    kept, is_jemalloc, more_mib = done.stdout.split()
    assert (kept, is_jemalloc, done.stderr) == ("True", str(allocator is not None), "")
    assert 60 <= int(more_mib) <= 70


@pytest.mark.parametrize("folder", ["lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu", "lib64", "lib", "local/lib"])
def test_the_library_is_found_where_distributions_install_it(tmp_path: Path, folder: str) -> None:
    assert jemalloc(tmp_path) is None
    library = tmp_path / folder / "libjemalloc.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    assert jemalloc(tmp_path) == library


def test_without_the_library_nothing_is_loaded_before_the_others() -> None:
    assert "LD_PRELOAD" not in for_libraries(None)
    assert for_libraries(Path("/usr/lib64/libjemalloc.so.2"))["LD_PRELOAD"] == "/usr/lib64/libjemalloc.so.2"
