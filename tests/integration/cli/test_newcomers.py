"""What newcomers type: options in front of the command, `logs -f`, `--version`, a wait with one limit, templates elsewhere."""

from __future__ import annotations

import json
import time
from typing import Any

LINE = json.dumps({"name": "echo", "text": "hello"}).encode() + b"\n"


def test_the_gateway_may_be_named_in_front_of_the_command(recorder: Any, gnomon: Any) -> None:
    recorder.answer("GET", "/system/functions", document=[{"name": "echo"}])
    done = gnomon("-g", recorder.url, "list", "-q")
    assert (done.returncode, done.stdout) == (0, "echo\n")


def test_version_needs_no_gateway(gnomon: Any) -> None:
    done = gnomon("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("gnomon ")


def test_logs_f_follows_as_with_kubectl(recorder: Any, gnomon: Any) -> None:
    recorder.answer("GET", "/system/logs", document=LINE)
    for words in (("-f", "echo"), ("echo", "-f")):
        done = gnomon("logs", *words, "-g", recorder.url)
        assert (done.returncode, done.stdout) == (0, "hello\n")
    assert recorder.calls() == ["GET /system/logs?follow=true&name=echo&tail=-1"] * 2


def test_logs_f_still_takes_a_stack_file(recorder: Any, gnomon: Any, tmp_path: Any) -> None:
    (tmp_path / "mine.yml").write_text(f"provider: {{name: openfaas, gateway: {recorder.url}}}\n")
    recorder.answer("GET", "/system/logs", document=LINE)
    assert gnomon("logs", "-f", "mine.yml", "echo").stdout == "hello\n"


def test_the_timeout_of_ready_bounds_the_whole_wait(recorder: Any, gnomon: Any) -> None:
    recorder.answer("GET", "/system/function/echo", document={"name": "echo"})
    began_s = time.monotonic()
    done = gnomon("ready", "echo", "--timeout", "1s", "--interval", "200ms", "--attempts", "1000", "-g", recorder.url)
    assert done.returncode == 1
    assert "not ready after 1." in done.stderr
    assert len(recorder.requests) <= 6
    assert time.monotonic() - began_s < 30


def test_a_warning_names_the_key_that_was_meant_and_the_function_is_deployed(recorder: Any, gnomon: Any, tmp_path: Any) -> None:
    head = f"provider: {{name: openfaas, gateway: {recorder.url}}}\n"
    (tmp_path / "stack.yml").write_text(head + "functions:\n  echo:\n    image: e:1\n    anotations: {a: b}\n")
    recorder.answer("PUT", "/system/functions", 202)
    done = gnomon("deploy")
    assert done.returncode == 0
    assert "Warning: stack.yml:5: functions.echo.anotations is not a key" in done.stderr
    assert "Did you mean annotations?" in done.stderr


def test_our_own_templates_need_no_pull_outside_of_a_clone(recorder: Any, gnomon: Any, tmp_path: Any) -> None:
    (tmp_path / "mine").mkdir()
    stack = "version: 1.0\nprovider: {name: openfaas}\nfunctions:\n  a: {lang: %s, handler: ./mine, image: a:1}\n"
    (tmp_path / "stack.yml").write_text(stack % "gnomon-boddy")
    done = gnomon("deploy", "-g", recorder.url)
    assert done.returncode == 1
    assert "Did you mean gnomon-body?" in done.stderr
    (tmp_path / "stack.yml").write_text(stack % "gnomon-body")
    done = gnomon("up", "--payload-secret", "missing", "-g", recorder.url)
    assert "missing: No such file" in done.stderr, "the template was found; only the builder's secret was not"


def test_fewer_than_no_replicas_are_a_number_out_of_range(recorder: Any, gnomon: Any) -> None:
    done = gnomon("scale", "echo", "-1", "-g", recorder.url)
    assert done.returncode == 2
    assert "-1 is not in the range" in done.stderr
    assert recorder.requests == []
