"""A buffer has one writer, keeps its size, and leaves nothing behind."""

import mmap
import os
from collections.abc import Iterator

import pytest

from gnomon_core import shared_memory
from gnomon_core.blocks import Block, Layers

SIZE = 1 << 16


@pytest.fixture
def buffer() -> Iterator[int]:
    descriptor = shared_memory.make("test", SIZE)
    yield descriptor
    os.close(descriptor)


def test_what_the_writer_writes_the_reader_reads(buffer: int) -> None:
    other = shared_memory.reader(buffer)
    with mmap.mmap(buffer, SIZE) as here, mmap.mmap(other, SIZE, prot=mmap.PROT_READ) as there:
        here[100:105] = b"hello"
        assert there[100:105] == b"hello"
    os.close(other)


def test_the_reader_cannot_write_by_any_call(buffer: int) -> None:
    other = shared_memory.reader(buffer)
    with pytest.raises(PermissionError):
        mmap.mmap(other, SIZE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(other, b"x", 0)
    os.close(other)


@pytest.mark.root
def test_another_user_cannot_open_it_again_for_writing(buffer: int) -> None:
    other = shared_memory.reader(buffer)
    child = os.fork()
    if child == 0:
        os.setresuid(12345, 12345, 12345)
        try:
            os.open(f"/proc/self/fd/{other}", os.O_RDWR)
        except PermissionError:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    os.close(other)


def test_nobody_can_change_its_size_or_its_seals(buffer: int) -> None:
    for size in (SIZE - 1, SIZE + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(buffer, size)
    assert shared_memory.check(buffer) == SIZE


def test_a_file_whose_size_can_change_is_refused() -> None:
    descriptor = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, SIZE)
    with pytest.raises(ValueError, match="not sealed"):
        shared_memory.check(descriptor)
    os.close(descriptor)
    read, write = os.pipe()
    with pytest.raises(ValueError, match="no anonymous file"):
        shared_memory.check(read)
    os.close(read)
    os.close(write)
    with pytest.raises(ValueError, match="buffer of 0 bytes"):
        shared_memory.make("nothing", 0)


def test_a_new_buffer_holds_nothing_of_an_earlier_one(buffer: int) -> None:
    os.pwrite(buffer, b"\xff" * SIZE, 0)
    other = shared_memory.make("of another pair", SIZE)
    assert os.pread(other, SIZE, 0) == bytes(SIZE)
    os.close(other)


def block(begin: int, reads: tuple[str, ...], makes: tuple[str, ...]) -> Block:
    return Block(f"block {begin}", begin, begin + 1, reads, makes, (), 0, 0, splittable=True)


def test_the_largest_run_at_the_largest_batch_fits() -> None:
    """Block 1 reads 10 + 100 bytes a sample: 128 + 832 at a batch of 8. Block 0 gives both back, and no longer run gives more."""
    layers = Layers(
        "",
        ("c",),
        (block(0, ("x",), ("a", "b")), block(1, ("a", "b"), ("c",))),
        {"x": 4, "a": 10, "b": 100, "c": 1},
    )
    assert shared_memory.hand_over_bytes(layers, 8) == (128 + 832, 128 + 832)
    assert shared_memory.hand_over_bytes(layers, 1) == (64 + 128, 64 + 128)
