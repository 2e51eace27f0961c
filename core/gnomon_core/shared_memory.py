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
"""The alignment of tensors in a buffer: kernels split their loops by alignment, which changes the last bit of sums."""
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
    """Open a read-only descriptor of a buffer, which the caller closes."""
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
        raise ValueError("a buffer whose size is not sealed, or is 0")
    return size_bytes


def buffer_sizes(layers: Layers, max_batch: int) -> tuple[int, int]:
    """Bytes of a pair's two buffers, to the Shadow and back: enough for a run of any blocks, so that blocks can change in place.

    A run reads values that were made before it, and makes values that are read after it. So no run moves more than the values
    that are alive at one border between blocks. Pages that are never touched cost nothing.

    Example: values of 10 and 100 bytes alive at a border, batches of 8: 128 + 832 bytes, each value on a multiple of 64.
    """
    last_read = {name: number for number, block in enumerate(layers.blocks) for name in block.reads}
    last_read |= dict.fromkeys(layers.outputs, len(layers.blocks))
    made = {name for block in layers.blocks for name in block.makes}
    alive = {name for block in layers.blocks for name in block.reads} - made
    to_bytes = from_bytes = 1
    for number, block in enumerate(layers.blocks):
        alive = {name for name in alive if last_read[name] >= number}
        to_bytes = max(to_bytes, _bytes_of(layers, alive, max_batch))
        alive |= {name for name in block.makes if name in last_read}
        from_bytes = max(from_bytes, _bytes_of(layers, {name for name in alive if last_read[name] > number}, max_batch))
    return to_bytes, from_bytes


def _bytes_of(layers: Layers, names: set[str], samples: int) -> int:
    return sum(aligned(samples * layers.value_bytes.get(name, 0)) for name in names)


def aligned(size_bytes: int) -> int:
    """The next multiple of `ALIGNMENT_BYTES`."""
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
