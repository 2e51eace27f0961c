"""The memory of a process is read in one place, and a process that has ended is an error."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest

from gnomon_core.process_memory import peak_bytes, resident_bytes


def test_peak_includes_memory_that_was_given_back() -> None:
    with mmap.mmap(-1, 64 << 20) as block:  # not from the heap, which an engine may have told to keep what is freed
        block.write(b"\1" * len(block))
        held = resident_bytes()
        assert held > len(block)
    # Linux adds up the counts of a process's threads only now and then: both numbers may be off by a few MiB.
    assert resident_bytes() < held - (32 << 20) < peak_bytes()


def test_memory_of_an_ended_process_is_an_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie until it is waited for
    with pytest.raises(OSError, match="ended"):
        peak_bytes(process.pid)
    process.wait()
    with pytest.raises(FileNotFoundError):
        resident_bytes(process.pid)
