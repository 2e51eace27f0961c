"""The last words of an Invoke's log."""

import base64

from gnomon_platforms.aws_lambda.invocation import Report, read_tail

TEXT = (
    "START RequestId: 8f5 Version: 3\n"
    "2026/11/21 18:00:00 Forking fprocess.\n"
    "[WARNING]\t2026-11-21T18:00:00Z\t8f5\tsomething\n"
    "END RequestId: 8f5\n"
    "REPORT RequestId: 8f5\tDuration: 12.34 ms\tBilled Duration: 613 ms\tMemory Size: 1769 MB\tMax Memory Used: 180 MB\t"
    "Init Duration: 600.12 ms\t\n"
)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_the_numbers_and_the_function_s_own_lines() -> None:
    tail = read_tail(encoded(TEXT))
    assert tail.report == Report(12.34, 613.0, 1769, 180, 600.12)
    assert tail.lines[1].endswith("something")
    assert tail.lines[0].endswith("Forking fprocess.")


def test_a_warm_sandbox_has_no_start() -> None:
    report = read_tail(encoded(TEXT.replace("Init Duration: 600.12 ms\t", ""))).report
    assert report is not None
    assert report.init_ms == 0.0


def test_a_log_in_json_says_the_same() -> None:
    text = (
        '{"time":"2026","type":"platform.start","record":{"requestId":"8f5"}}\n'
        '{"level":"INFO","message":"own"}\n'
        '{"time":"2026","type":"platform.report","record":{"requestId":"8f5","metrics":{"durationMs":12.34,'
        '"billedDurationMs":13,"memorySizeMB":1769,"maxMemoryUsedMB":180}}}\n'
    )
    tail = read_tail(encoded(text))
    assert tail.report == Report(12.34, 13.0, 1769, 180)
    assert tail.lines == ('{"level":"INFO","message":"own"}',)


def test_what_is_cut_off_or_nonsense_is_nothing() -> None:
    assert read_tail(None).report is None
    assert read_tail("!!").report is None
    assert read_tail(encoded("REPORT RequestId: 8f5\tDuration: 12.34 ms\n")).report is None
    assert read_tail(encoded('{"type":"platform.report","record":7}\n')).report is None
