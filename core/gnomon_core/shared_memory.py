"""Anonymous memory that two processes share: one writes it, the other can only read.

A buffer is a memfd. It has no name in any file system, so nothing is left of it when the last descriptor closes, however its
users end. Its size is sealed: a peer that truncates a mapped file kills the other side by SIGBUS, and this one cannot. The writer
gets the descriptor that `make` returns, the reader one from `reader`, which is open for reading only; the file's mode keeps a
process of another user from opening it again for more through /proc.

    coordinator   fd = make("to shadow", 8 MiB)   ──fd──▶ Body writes
                  reader(fd)                      ──────▶ Shadow reads

Pages are allocated when they are first touched, and charged to who touches them, so a buffer that is larger than what goes
through it costs nothing.
"""

from __future__ import annotations

import fcntl
import os

from gnomon_core.blocks import Layers

ALIGNMENT_BYTES = 64
"""Where a tensor may begin in a buffer: kernels split their loops by alignment, and the last bit of a sum with them."""
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_NOEXEC_SEAL = 0x0008
"""MFD_NOEXEC_SEAL, since Linux 6.3: the file can never be executed."""
_OWNER_READS = 0o400


def make(name: str, size_bytes: int) -> int:
    """A new buffer, all zero and sealed in size. The descriptor, for its only writer, is the caller's to close.

    Raises:
        ValueError: a size below 1.
        OSError: the kernel has no memory or no descriptor left.

    """
    if size_bytes < 1:
        raise ValueError(f"a buffer of {size_bytes} bytes")
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        descriptor = os.memfd_create(name, flags | _NOEXEC_SEAL)
    except OSError:
        # An older kernel does not know the flag.
        descriptor = os.memfd_create(name, flags)
    try:
        os.ftruncate(descriptor, size_bytes)
        # F_SEAL_WRITE would forbid the writer's mapping as well; the mode only governs later opens.
        os.fchmod(descriptor, _OWNER_READS)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def reader(descriptor: int) -> int:
    """Another descriptor of the same buffer, through which nothing can be written. The caller's to close."""
    # Not `dup`, which shares the open file and so its access mode: through /proc the file is opened anew (proc_pid_fd(5)).
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def check(descriptor: int) -> int:
    """Validate a received buffer and return its size in bytes.

    Raises:
        ValueError: its size is not sealed, or it is not an anonymous file.

    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise ValueError("a buffer that is no anonymous file") from None
    size_bytes = os.fstat(descriptor).st_size
    if seals & SEALS != SEALS or size_bytes < 1:
        raise ValueError("a buffer whose size is not sealed, or is nothing")
    return size_bytes


def hand_over_bytes(layers: Layers, max_batch: int) -> tuple[int, int]:
    """The sizes of a pair's buffers, to the Shadow and from it, that any run of any blocks fits in.

    Each value is padded to `ALIGNMENT_BYTES`. Example: 10 and 100 bytes a sample and a batch of 8 need 128 + 832 bytes.
    """
    there, back = 1, 1
    count = len(layers.blocks)
    for first in range(count):
        for last in range(first, count):
            (run,) = layers.runs(range(first, last + 1))
            there = max(there, sum(aligned(max_batch * layers.value_bytes[name]) for name in run.reads))
            back = max(back, sum(aligned(max_batch * layers.value_bytes[name]) for name in run.makes))
    return there, back


def aligned(size_bytes: int) -> int:
    """The next multiple of `ALIGNMENT_BYTES`."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
