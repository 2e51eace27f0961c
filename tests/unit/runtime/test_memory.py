"""Memory of an instance."""

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gnomon_core.packaging import for_libraries, jemalloc
from gnomon_runtime import linux

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


MAPS = """\
55d0c0000000-55d0c0400000 rw-p 00000000 00:00 0                          [heap]
7f0000180000-7f0000680000 rw-p 00000000 00:00 0
7f0001000000-7f0001400000 rw-p 00000000 08:01 77                         /usr/lib/libc.so.6
7f0002000000-7f0002400000 r--p 00000000 00:00 0
7f0003000000-7f0003100000 rw-p 00000000 00:00 0
7f0004000000-7f0004400000 rw-s 00000000 00:01 99                         /memfd:hand-over (deleted)
"""


def test_huge_pages_are_placed_in_anonymous_writable_memory_only() -> None:
    assert [*linux.huge_page_addresses(MAPS)] == [0x55D0C0000000, 0x55D0C0200000, 0x7F0000200000, 0x7F0000400000]


@pytest.mark.parametrize("maps", ["", "7f0000000000-7f00001ff000 rw-p 00000000 00:00 0\n"])
def test_mapping_smaller_than_a_huge_page_has_none(maps: str) -> None:
    assert [*linux.huge_page_addresses(maps)] == []


def test_memory_content_survives_gathering() -> None:
    child = os.fork()
    if child == 0:
        with mmap.mmap(-1, 4 * linux.HUGE_BYTES) as memory:
            for at in range(0, len(memory), mmap.PAGESIZE):
                memory[at : at + 8] = at.to_bytes(8, "little")
            gathered = linux.gather_huge_pages()
            same = all(memory[at : at + 8] == at.to_bytes(8, "little") for at in range(0, len(memory), mmap.PAGESIZE))
            os._exit(0 if same and (gathered == 0 or _huge_bytes() > 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_kernel_error_is_raised_as_oserror() -> None:
    room = ctypes.create_string_buffer(8)
    with pytest.raises(OSError, match="madvise"):
        linux.advise(ctypes.addressof(room) | 1, linux.HUGE_BYTES, linux.MADV_COLLAPSE)


def _huge_bytes() -> int:
    """What this process has in huge pages, as the kernel counts it."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:"))
