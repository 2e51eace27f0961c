"""The classic watchdog's contract, without a platform around it."""

import time
from pathlib import Path

import pytest

from gnomon_core.launch import Launch
from gnomon_core.wire import Frame, Kind, Member
from gnomon_runtime.process import ProcessApplication, RedirectApplication

PATH = "/usr/local/bin:/usr/bin:/bin"
META = b"PATCH\n/a/b\nx=1&y=2\nhost: example.org\ncontent-type: application/json\nx-my-header: one\nx-my-header: two\n"


def run(process: str, *bodies: bytes, meta: bytes = META, **environment: str) -> list[Member]:
    launch = Launch("process", "f.ns", "f-1", environment={"PATH": PATH, "fprocess": process, **environment})
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
    told = variables(member)
    assert told["Http_Transfer_Encoding"] == "chunked"
    assert told["Http_ContentLength"] == "-1"


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
