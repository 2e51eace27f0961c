"""The classic watchdog's contract, an instance's life as its supervisor sees it, and its logs."""

import os
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.launch import Launch, Order, Sandbox
from gnomon_core.wire import Frame, Kind, Member, encode
from gnomon_platforms.local.instances import BURST_LINES, KEPT_LINES, MAX_LINE_BYTES, InstanceContext, LocalInstance, LogPipe
from gnomon_platforms.local.pairs import LocalShadow
from gnomon_runtime import process
from gnomon_runtime.process import ProcessApplication, RedirectApplication
from tests.platform_testing import Recorder

PATH = "/usr/local/bin:/usr/bin:/bin"
META = b"PATCH\n/a/b\nx=1&y=2\nhost: example.org\ncontent-type: application/json\nx-my-header: one\nx-my-header: two\n"


def run(program: str, *bodies: bytes, meta: bytes = META, **environment: str) -> list[Member]:
    launch = Launch("process", "f.ns", "f-1", environment={"PATH": PATH, "fprocess": program, **environment})
    batch = Frame(Kind.BATCH, 9, members=[Member(0, 1, meta, body) for body in bodies])
    result = ProcessApplication(launch).run(batch)
    assert (result.kind, result.batch_id) == (Kind.RESULT, 9)
    return list(result.members)


def variables(member: Member) -> dict[str, str]:
    lines = bytes(member.body).decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_program_learns_about_its_request_from_its_environment() -> None:
    [member] = run("env", b"12345", custom_env="custom value")
    assert member.code == 200
    assert variables(member) == {
        "PATH": PATH,
        "fprocess": "env",
        "custom_env": "custom value",
        "Http_Method": "PATCH",
        "Http_Path": "/a/b",
        "Http_Query": "x=1&y=2",
        "Http_Host": "example.org",
        "Http_Content_Type": "application/json",
        "Http_X_My_Header": "one",
        "Http_ContentLength": "5",
        "Http_Content_Length": "5",
    }


def test_a_chunked_request_has_no_length() -> None:
    [member] = run("env", b"12", meta=b"POST\n/\n\ntransfer-encoding: chunked\n")
    events = variables(member)
    assert events["Http_Transfer_Encoding"] == "chunked"
    assert events["Http_ContentLength"] == "-1"


def test_an_absent_query_is_an_absent_variable() -> None:
    [member] = run("env", b"", meta=b"GET\n/\n\n")
    assert "Http_Query" not in variables(member)


def test_cgi_headers_can_be_turned_off() -> None:
    [member] = run("env", b"", cgi_headers="false")
    assert "Http_Method" not in variables(member)


def test_the_answer_has_the_type_of_the_request_unless_the_function_names_one() -> None:
    assert b"Content-Type: application/json\n" in run("cat", b"{}")[0].meta
    assert b"Content-Type: image/png\n" in run("cat", b"", content_type="image/png")[0].meta
    assert b"Content-Type: text/plain" in run("cat", b"", meta=b"GET\n/\n\n")[0].meta


def test_members_run_side_by_side_and_each_gets_its_own_output(tmp_path: Path) -> None:
    """Each waits until all six are there."""
    script = f"touch {tmp_path}/%d; while [ $(ls {tmp_path} | wc -l) -lt 6 ]; do sleep 0.01; done; echo %d"
    bodies = [script.replace("%d", str(number)).encode() for number in range(6)]
    members = run("sh", *bodies, exec_timeout="20s")
    assert [bytes(member.body) for member in members] == [b"%d\n" % number for number in range(6)]


def test_a_body_and_an_output_larger_than_a_pipe_flow_both_ways() -> None:
    body = bytes(range(256)) * 8192
    assert [bytes(member.body) for member in run("cat", body, body)] == [body, body]


def test_a_program_need_not_read_its_input() -> None:
    assert bytes(run("echo hi", b"x" * 500_000)[0].body) == b"hi\n"


def test_failing_program_answers_500_with_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    bad, good = run("sh", b"echo oops; exit 3", b"echo fine")
    assert (bad.code, bytes(bad.body)) == (500, b"exit status 3\noops\n")
    assert (good.code, bytes(good.body)) == (200, b"fine\n")
    assert "exit status 3" in capfd.readouterr().err


@pytest.mark.parametrize("program", ["no-such-program", "/no/such/program --flag", "/etc/passwd"])
def test_a_program_that_cannot_be_executed_fails_the_start_with_its_name(program: str) -> None:
    with pytest.raises(ValueError, match="not found or is not executable") as raised:
        ProcessApplication(Launch("process", "f.ns", "f-1", environment={"PATH": PATH, "fprocess": program}))
    assert program.split(maxsplit=1)[0] in str(raised.value)


def test_a_program_that_disappears_while_the_instance_lives_answers_500(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\ncat\n")
    program.chmod(0o755)
    application = ProcessApplication(Launch("process", "f.ns", "f-1", environment={"PATH": PATH, "fprocess": str(program)}))
    program.unlink()
    [member] = application.run(Frame(Kind.BATCH, 9, members=[Member(0, 1, META, b"")])).members
    assert member.code == 500
    assert str(program).encode() in bytes(member.body)


@pytest.mark.parametrize("script", [b"sleep 30", b"exec >&- 2>&-; sleep 30", b"sleep 30 & echo x"])
def test_slow_program_is_killed_with_its_children(script: bytes) -> None:
    began_s = time.monotonic()
    [member] = run("sh", script, exec_timeout="200ms")
    assert time.monotonic() - began_s < 20
    assert member.code == 408


def test_program_that_prints_without_end_is_killed_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_OUTPUT_BYTES", 1 << 20)
    for script in (b"yes", b"yes & sleep 600"):
        [member] = run("sh", script)
        assert (member.code, bytes(member.body)) == (500, b"The output has more than 1048576 bytes.\n")


def test_the_error_output_is_part_of_the_answer_unless_it_goes_to_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    script = b"echo out; echo problem >&2"
    assert b"problem" in bytes(run("sh", script)[0].body)
    [member] = run("sh", script, combine_output="false")
    assert bytes(member.body) == b"out\n"
    assert "stderr: problem" in capfd.readouterr().err


def test_the_log_reads_as_the_watchdogs(capfd: pytest.CaptureFixture[str]) -> None:
    run("cat", b"four")
    first, second = capfd.readouterr().err.splitlines()
    assert first.lstrip("0123456789/: ") == "Forking fprocess."
    assert second.lstrip("0123456789/: ").startswith("Wrote 4 Bytes - Duration: ")


def test_a_function_without_a_process_says_so() -> None:
    with pytest.raises(ValueError, match="names no process"):
        ProcessApplication(Launch("process", "f.ns", "f-1"))


def test_a_redirector_redirects_and_refuses_a_destination_that_would_add_headers() -> None:
    launch = Launch("redirect", "f.ns", "f-1", environment={"destination": "http://example.com"})
    frame = RedirectApplication(launch).run(Frame(Kind.BATCH, 1, members=[Member(0, 1, META, b"")] * 2))
    assert [(member.code, member.meta) for member in frame.members] == [(302, b"Location: http://example.com")] * 2
    with pytest.raises(ValueError, match="one line"):
        RedirectApplication(Launch("redirect", "f.ns", "f-1", environment={"destination": "x\r\nSet-Cookie: a"}))


INSTANCE = Instance("f-1", "f.openfaas-fn", 1, "here", 1, 0, InstanceState.STARTING, 0.0)
ORDER = Order(Launch("handler", "f", "f-1"), Sandbox())
HELLO = encode(Frame(Kind.HELLO, head=b"{}"))


class Subject(Recorder):
    """An instance, the events that the platform's listener gets, and the process's end of the channel."""

    def __init__(self) -> None:
        super().__init__()
        self.theirs: socket.socket | None = None
        self.context = InstanceContext(self._send, self, lambda: 0.0, lambda *_: None)
        self.instance = LocalInstance(INSTANCE, FunctionKey("f"), "bare", self.context)
        self.instance.order(ORDER, [], 60.0)

    def _send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        for number, descriptor in enumerate(descriptors or []):
            if message["do"] == "create" and number == 1:
                self.theirs = socket.socket(fileno=descriptor)
            else:
                os.close(descriptor)

    def say(self) -> None:
        """Send the HELLO of the process."""
        self.theirs.sendall(HELLO)

    def speak(self) -> None:
        """Send the HELLO, and read it at once."""
        self.say()
        self.instance.channel._readable()

    def close(self) -> None:
        """End the instance, and close the process's end of the channel."""
        self.instance.end(0.0, "the test is over")
        if self.theirs is not None:
            self.theirs.close()


@pytest.fixture
async def subject() -> AsyncIterator[Subject]:
    subject = Subject()
    yield subject
    subject.close()


@pytest.mark.parametrize("order", [("forked", "speaks"), ("speaks", "forked")])
async def test_instance_is_ready_after_its_message_and_its_process_are_known(subject: Subject, order: tuple[str, str]) -> None:
    for number, step in enumerate(order):
        assert (subject.instance.instance.state, subject.ready) == (InstanceState.STARTING, {}), f"before step {number}"
        subject.instance.forked(17) if step == "forked" else subject.speak()
    assert subject.instance.instance.state is InstanceState.READY
    assert list(subject.ready) == ["f-1"]


@pytest.mark.parametrize("forked", [False, True])
async def test_instance_is_restarted_once_when_its_supervisor_ends(subject: Subject, *, forked: bool) -> None:
    if forked:
        subject.instance.forked(17)
    before = subject.theirs
    assert subject.instance.withdraw()
    before.close()
    subject.instance.order(ORDER, [], 60.0)
    subject.speak()
    assert not subject.ready, "its new process is not known"
    subject.instance.forked(18)
    assert (list(subject.ready), subject.instance.pid) == (["f-1"], 18)
    assert not subject.instance.withdraw(), "it is ready: what ends it now is an end"


async def test_ending_instance_is_not_restarted(subject: Subject) -> None:
    subject.instance.forked(17)
    subject.instance.stop()
    assert not subject.instance.withdraw()


async def test_instance_stopped_early_is_never_ready(subject: Subject) -> None:
    subject.speak()
    subject.instance.stop()
    subject.instance.forked(17)
    assert subject.ready == {}
    subject.instance.end(0.0, "ended by SIGKILL")
    assert subject.times_gone["f-1"] == 1


async def test_a_first_word_that_is_read_at_the_end_comes_too_late(subject: Subject) -> None:
    subject.instance.forked(17)
    subject.say()
    subject.instance.end(0.0, "ended by SIGKILL")
    assert (subject.ready, dict(subject.times_gone)) == ({}, {"f-1": 1})


async def test_shadow_that_ends_while_it_is_promoted_does_not_become_a_body(subject: Subject) -> None:
    risen: list[str] = []
    ends: list[tuple[int, ...]] = []
    shadow = LocalShadow(INSTANCE, FunctionKey("f"), "torch", subject.context, lambda _, fds=(): ends.append(fds))
    shadow.promote(ORDER, 0, 60.0, lambda: risen.append("f-1"))
    [(_, theirs)] = ends
    with socket.socket(fileno=os.dup(theirs)) as becoming:
        becoming.sendall(HELLO)
        shadow.end(0.0, "the supervisor has ended")
    assert (risen, dict(subject.times_gone)) == ([], {"f-1": 1})


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
