"""Files, clocks, dates, shared memory and background tasks."""

from __future__ import annotations

import asyncio
import mmap
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core import packets, shared_memory
from gnomon_core.atomic_files import make_folder, replace_file, replacing
from gnomon_core.background import Background
from gnomon_core.blocks import Block, Layers
from gnomon_core.clock import EARLIEST_S, LATEST_S, WallClock, parse_time_s, rfc3339, seconds_of, utc_now_s
from gnomon_core.coordinator_client import CoordinatorClient
from gnomon_core.errors import GnomonError
from gnomon_core.process_memory import peak_bytes, resident_bytes
from tests.on_disk import Disk

REFUSAL = GnomonError(503, "no_capacity", "There is no room.", "Add a node.")


async def fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("ended", [False, True])
async def test_failure_of_a_background_task_is_reported(caplog: pytest.LogCaptureFixture, *, ended: bool) -> None:
    background = Background()
    background.begin(fails(ZeroDivisionError("a mistake of ours")))
    if not ended:
        await background.settled()
    else:
        await asyncio.sleep(0)
        await background.end()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert isinstance(record.exc_info[1], ZeroDivisionError)


async def test_refusal_in_a_background_task_is_logged_without_traceback(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    background.begin(fails(REFUSAL))
    await background.settled()
    logged = [(record.levelname, record.getMessage(), record.exc_info) for record in caplog.records]
    assert logged == [("WARNING", f"a background task has failed: {REFUSAL}", None)]


async def test_background_tasks_settle_including_new_ones() -> None:
    background, done = Background(), list[str]()

    async def second() -> None:
        await asyncio.sleep(0)
        done.append("second")

    async def first() -> None:
        background.begin(second())
        done.append("first")

    background.begin(first())
    await background.settled()
    assert done == ["first", "second"]


async def test_cancelled_background_task_cleans_up(caplog: pytest.LogCaptureFixture) -> None:
    background, begun, done = Background(), asyncio.Event(), list[str]()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            done.append("in order")

    background.begin(work())
    await begun.wait()
    await background.end()
    assert done == ["in order"]
    assert not caplog.records


async def test_starter_gets_the_result_of_a_background_task() -> None:
    async def counts() -> int:
        return 3

    assert await Background().begin(counts()) == 3


SIZE = 1 << 16


@pytest.fixture
def buffer() -> Iterator[int]:
    descriptor = shared_memory.make("test", SIZE)
    yield descriptor
    os.close(descriptor)


def test_reader_sees_what_the_writer_wrote(buffer: int) -> None:
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


def test_size_and_seals_of_shared_memory_are_fixed(buffer: int) -> None:
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
    assert shared_memory.buffer_sizes(layers, 8) == (128 + 832, 128 + 832)
    assert shared_memory.buffer_sizes(layers, 1) == (64 + 128, 64 + 128)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@given(contents=st.lists(st.text() | st.binary(), min_size=1, max_size=3), durable=st.booleans())
def test_a_file_has_the_content_that_it_was_given_last(
    tmp_path_factory: pytest.TempPathFactory, contents: list[str | bytes], *, durable: bool
) -> None:
    path = tmp_path_factory.mktemp("files") / "file"
    for content in contents:
        replace_file(path, content, durable=durable)
        assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert names(path.parent) == ["file"]


@pytest.mark.parametrize("durable", [True, False])
def test_file_replacement_is_atomic(tmp_path: Path, *, durable: bool) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", durable=durable)
    with replacing(path, durable=durable) as file:
        file.write(b"ne")
        file.flush()
        assert path.read_bytes() == b"old"
        file.write(b"w")
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("why", [ValueError, KeyboardInterrupt])
def test_a_writer_that_fails_changes_nothing_and_leaves_nothing(tmp_path: Path, why: type[BaseException]) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old", durable=False)

    def fail() -> None:
        with replacing(path, durable=True) as file:
            file.write(b"new")
            raise why

    with pytest.raises(why):
        fail()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_failed_file_replacement_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_file(tmp_path / "file", b"x", durable=False)
    assert names(tmp_path) == ["file"]
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "no" / "file", b"x", durable=False)


def test_a_killed_writer_leaves_the_old_content(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", b"old", durable=False)
    writer = (
        "import os, pathlib, signal, sys\n"
        "from gnomon_core.atomic_files import replacing\n"
        "with replacing(pathlib.Path(sys.argv[1]), durable=True) as file:\n"
        "    file.write(b'new')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", writer, tmp_path / "file"], check=False).returncode == -9
    assert (tmp_path / "file").read_bytes() == b"old"
    replace_file(tmp_path / "file", b"later", durable=False)
    assert (tmp_path / "file").read_bytes() == b"later"


def test_concurrent_writers_leave_one_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([65 + number]) * 100_000 for number in range(8)]
    threads = [
        threading.Thread(target=lambda content=content: [replace_file(path, content, durable=False) for _ in range(20)])
        for content in contents
    ]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or path.read_bytes() in contents
    for thread in threads:
        thread.join()
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["file"]


@pytest.mark.usefixtures("usual_umask")
@pytest.mark.parametrize(
    ("mode", "umask", "found"), [(None, 0o022, 0o644), (None, 0o077, 0o600), (0o600, 0, 0o600), (0o444, 0o077, 0o444)]
)
def test_a_mode_that_is_asked_for_does_not_depend_on_the_umask(tmp_path: Path, mode: int | None, umask: int, found: int) -> None:
    os.umask(umask)
    for _ in range(2):
        replace_file(tmp_path / "file", b"x", durable=False, mode=mode)
        assert mode_of(tmp_path / "file") == found


@pytest.mark.usefixtures("usual_umask")
def test_a_secret_is_nobody_elses_while_it_is_written_either(tmp_path: Path) -> None:
    os.umask(0)
    with replacing(tmp_path / "file", durable=False, mode=0o600):
        assert [mode_of(path) for path in tmp_path.iterdir()] == [0o600]


def test_a_file_can_be_written_in_another_folder(tmp_path: Path) -> None:
    aside, shown = tmp_path / "aside", tmp_path / "shown"
    aside.mkdir()
    shown.mkdir()
    with replacing(shown / "file", durable=True, aside=aside) as file:
        file.write(b"x")
        assert (len(names(aside)), names(shown)) == (1, [])
    assert (names(aside), names(shown)) == ([], ["file"])


@pytest.mark.usefixtures("usual_umask")
def test_durable_file_is_synced_with_its_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    path = tmp_path / "a" / "b" / "file"
    make_folder(path.parent, 0o700)
    make_folder(path.parent)
    replace_file(path, b"old", durable=False)
    assert not disk.keeps(path, tmp_path)
    replace_file(path, b"new", durable=True)
    assert disk.keeps(path, tmp_path)
    assert [mode_of(folder) for folder in (path.parent, path.parent.parent)] == [0o700, 0o755]


NEVER = 1e9
"""Milliseconds that take ten letters."""


async def test_request_with_too_many_predictions_is_read_without_them() -> None:
    theirs: list[socket.socket] = []

    def supervisor(_message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        theirs.extend(socket.socket(fileno=descriptor) for descriptor in descriptors)

    client = CoordinatorClient(supervisor, lambda _: None, {})
    [coordinator] = theirs
    try:
        # The largest batch of all, in as many runs as eight blocks that are no neighbours make.
        client.send({"do": "change", "shadow": "s-1", "expected_ms": [[NEVER] * 1023] * 8})
        client.send({"do": "change", "shadow": "s-2", "expected_ms": [[1.5, 2.5]]})
        assert packets.receive(coordinator)[0] == {"do": "change", "shadow": "s-1", "expected_ms": []}
        assert packets.receive(coordinator)[0] == {"do": "change", "shadow": "s-2", "expected_ms": [[1.5, 2.5]]}
    finally:
        client.close()
        coordinator.close()


async def test_a_coordinator_that_counts_to_infinity_is_left_out_and_heard_on() -> None:
    theirs: list[socket.socket] = []
    found: asyncio.Queue[int] = asyncio.Queue()

    def supervisor(_message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        theirs.extend(socket.socket(fileno=descriptor) for descriptor in descriptors)

    def on_event(event: Mapping[str, Any]) -> None:
        found.put_nowait(int(event["containers"]))

    raised: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.append(context))
    client = CoordinatorClient(supervisor, on_event, {})
    [coordinator] = theirs
    try:
        for containers in (float("inf"), float("nan"), 3):
            packets.send(coordinator, {"event": "pool", "containers": containers})
        assert await asyncio.wait_for(found.get(), 10.0) == 3
        assert not raised
    finally:
        client.close()
        coordinator.close()


SLEEPS_S = (0.0, -1.0, 0.0001, 0.0004, 0.0006, 0.0012, 0.0014, 0.0024, 0.0034)
"""uvloop's timers count whole milliseconds and round: 1.4 ms would end after 1."""


async def earliest_s() -> float:
    clock, late_s = WallClock(), []
    for duration_s in SLEEPS_S * 3:
        begin_s = time.monotonic()
        await clock.sleep(duration_s)
        late_s.append(time.monotonic() - begin_s - duration_s)
    return min(late_s)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_sleeper_does_not_wake_early(loop: type[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(earliest_s()) >= 0.0


NOON_S = 1716638400.0


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock shows local time."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-25T12:00:00Z", NOON_S),
        ("2024-05-25t12:00:00z", NOON_S),
        ("2024-05-25T12:00:00.5Z", NOON_S + 0.5),
        ("2024-05-25T12:00:00,5Z", NOON_S + 0.5),
        ("2024-05-25T12:00:00.123456789Z", NOON_S + 0.123456),
        ("2024-05-25T14:00:00+02:00", NOON_S),
        ("2024-05-25T06:30:00.25-05:30", NOON_S + 0.25),
        ("2024-05-25T12:00:00-00:00", NOON_S),
        ("2024-05-25 14:00:00 +0200", NOON_S),
        ("20240525T120000Z", NOON_S),
        (" 2024-05-25T12:00:00Z\n", NOON_S),
        ("0001-01-01T00:00:00Z", -62135596800.0),
    ],
)
def test_every_form_of_a_moment_with_a_zone_is_read(text: str, seconds: float) -> None:
    assert parse_time_s(text, zone_needed=True) == pytest.approx(seconds, abs=1e-6)
    assert seconds_of(text) == parse_time_s(text)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("text", ["2024-05-25T12:00:00", "2024-05-25 12:00:00.0000000", "20240525T12"])
def test_dates_without_a_zone_are_utc_or_refused(text: str) -> None:
    assert parse_time_s(text) == seconds_of(text) == NOON_S
    with pytest.raises(ValueError, match="names no zone"):
        parse_time_s(text, zone_needed=True)


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "yesterday",
        "None",
        "12",
        "2024-13-01T00:00:00Z",
        "2024-05-25T12:00:60Z",
        "2024-05-25T12:00:00Q",
        "٢٠٢٤",
        "\0",
        "9" * 5000,
    ],
)
def test_invalid_date_is_refused(odd: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_time_s(odd)
    assert seconds_of(odd) == 0.0


@pytest.mark.parametrize("odd", [None, 3, [], {"at": 1}])
def test_dates_that_are_not_text_are_refused(odd: object) -> None:
    assert seconds_of(odd) == 0.0


@given(st.text(max_size=30))
def test_nothing_but_a_value_error_comes_of_any_text(text: str) -> None:
    assert isinstance(seconds_of(text), float)


@pytest.mark.parametrize(
    ("seconds", "auto", "whole", "long"),
    [
        (NOON_S, "2024-05-25T12:00:00Z", "2024-05-25T12:00:00Z", "2024-05-25T12:00:00.000000Z"),
        (NOON_S + 0.75, "2024-05-25T12:00:00.750000Z", "2024-05-25T12:00:00Z", "2024-05-25T12:00:00.750000Z"),
        (-62135596800.0, "0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_a_moment_is_written_to_the_digit_that_is_asked_for(seconds: float, auto: str, whole: str, long: str) -> None:
    assert (rfc3339(seconds), rfc3339(seconds, "seconds"), rfc3339(seconds, "microseconds")) == (auto, whole, long)


@pytest.mark.usefixtures("elsewhere")
@given(st.integers(0, 4_000_000_000_000_000))
def test_written_date_is_read_back(microseconds: int) -> None:
    seconds = microseconds / 1e6
    for text in (rfc3339(seconds), rfc3339(seconds, "microseconds")):
        assert parse_time_s(text, zone_needed=True) == pytest.approx(seconds, rel=0, abs=1e-6)
    assert seconds - 1 < parse_time_s(rfc3339(seconds, "seconds")) <= seconds + 1e-6


@given(st.floats(allow_nan=False))
def test_any_number_can_be_written_and_sorts_as_a_text(seconds: float) -> None:
    text = rfc3339(seconds, "seconds")
    assert len(text) == len("2024-05-25T12:00:00Z")
    assert EARLIEST_S <= parse_time_s(text) <= LATEST_S


def test_now_is_within_this_era() -> None:
    assert "2024" < rfc3339(utc_now_s()) < "2100"


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
