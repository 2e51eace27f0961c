import os

import pytest

from gnomon_platforms.local.instances import BURST_LINES, KEPT_LINES, MAX_LINE_BYTES, LogPipe


class Pipe:
    """A LogPipe on a clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[str] = []
        read, self.write = os.pipe()
        self.log = LogPipe(read, self.lines.append, lambda: self.now_s)

    def say(self, text: bytes) -> None:
        while text:
            text = text[os.write(self.write, text[:60_000]) :]
            self.log._readable()


@pytest.fixture
async def pipe() -> Pipe:
    return Pipe()


async def test_lines_come_whole_however_they_were_written(pipe: Pipe) -> None:
    for piece in (b"one\ntw", b"o\r\nthr", b"ee", b"\n\xff\n", b"end"):
        pipe.say(piece)
    os.close(pipe.write)
    pipe.log.close()
    assert pipe.lines == ["one", "two", "three", "\ufffd", "end"]


async def test_a_line_without_end_is_cut(pipe: Pipe) -> None:
    pipe.say(b"x" * 100_000 + b"\nnext\n")
    os.close(pipe.write)
    pipe.log.close()
    assert all(len(line) <= MAX_LINE_BYTES for line in pipe.lines)
    assert pipe.lines[-1] == "next"


async def test_a_flood_is_counted_and_the_last_words_are_kept(pipe: Pipe) -> None:
    for number in range(BURST_LINES + 500):
        pipe.say(b"%d\n" % number)
    assert len(pipe.lines) == BURST_LINES
    assert list(pipe.log.last) == [str(BURST_LINES + 500 - left) for left in range(KEPT_LINES, 0, -1)]
    pipe.now_s = 1.0
    pipe.say(b"after\n")
    assert pipe.lines[-2:] == ["… 500 lines left out: more than 1000 a second …", "after"]
    os.close(pipe.write)
    pipe.log.close()
