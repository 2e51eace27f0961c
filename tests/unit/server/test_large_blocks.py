"""What large bodies and answers take goes back to the machine when they are gone, whatever small things were made meanwhile."""

from __future__ import annotations

import subprocess
import sys

SIZE, COUNT = 20_000_000, 20
PROGRAM = f"""
from pathlib import Path
from gnomon_server.process import give_back_large_blocks

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def received():
    parts = bytearray()
    while len(parts) < {SIZE}:
        parts += b"x" * (256 << 10)
    return bytes(parts)

give_back_large_blocks()
before, small = resident_bytes(), []
for _ in range(3):
    large = []
    for _ in range({COUNT}):
        large.append(received())
        small.append([bytearray(3000) for _ in range(20)])
    del large
print(resident_bytes() - before)
"""


def test_memory_of_large_bodies_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    # The small ones take 4 MB. Where the allocator keeps what large ones took, it is 60 MB.
    assert int(done.stdout) < SIZE
