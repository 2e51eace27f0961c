"""Stack files that nobody wrote: what the real faas-cli makes of each, and what it refuses, we make of it and refuse as well."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnomon_cli.deployment import Overrides, from_stack
from gnomon_cli.errors import CommandFailed
from gnomon_cli.stack import parse_stack

VARIABLES = {"A": "hello", "B": "", "C": "a/b.c/d"}
FORMS = [
    "${A}",
    "${B}",
    "${A:-x}",
    "${B:-x}",
    "${B:=${A}}",
    "$$",
    "$",
    "\\\\",
    "\\/",
    "\\",
    "/",
    "}",
    "{",
    "${A/l/L}",
    "${A//l/}",
    "${C##*/}",
    "${C%.*}",
    "${A:1}",
    "${A:1:2}",
    "${A:9}",
    "${#C}",
    "${A^}",
    "${A,,}",
    "a",
    "é",
    "#",
    "${",
    "${A",
    "${B:-${A}${C}}",
    "${A#h?l}",
    "${C%%/*}",
    "${A/#he/}",
    "${A/%lo/x}",
    "${B:-}",
    "${A:-2:1}",
    "${B:+y}",
    "${B:?z}",
    "${A-x}",
    "${}",
    "${A%%[a-l]*}",
    "${A##[a-h]*}",
]
SCALARS = [
    "1.0",
    "yes",
    "0o7",
    "~",
    "null",
    "0x1F",
    "1e3",
    "'q'",
    '"d\\n"',
    "[a]",
    "{a:",
    "b}",
    "!!str",
    "&x",
    "*x",
    "2020-01-01",
    "=",
    "<<",
    "%a",
    "@a",
    "`a`",
    "12:30",
    "+1",
    "-",
    "off",
    "Y",
    "'it''s'",
    "---",
    '"\\u00e9"',
    "!!binary",
    "-.inf",
    "0644",
    "1_000",
]
VALUES = st.one_of(
    st.lists(st.sampled_from([*FORMS, " "]), min_size=1, max_size=5).map("".join),
    st.lists(st.sampled_from(SCALARS), min_size=1, max_size=2).map(" ".join),
)


def what_we_send(text: str) -> bytes | None:
    try:
        stack = parse_stack(text, "stack.yml", VARIABLES)
        return from_stack(stack, stack.functions[0], Overrides()).body
    except CommandFailed:
        return None


@pytest.mark.faas_cli
@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(value=VALUES, field=st.sampled_from(["environment", "annotations", "labels"]), switch=st.sampled_from(["", *SCALARS]))
def test_any_text(recorder: Any, environment: dict[str, str], tmp_path: Path, *, value: str, field: str, switch: str) -> None:
    faas_cli = shutil.which("faas-cli")
    if faas_cli is None:
        pytest.skip("no faas-cli on PATH")
    text = (
        f"version: 1.0\nprovider:\n  name: openfaas\n  gateway: {recorder.url}\n"
        f"functions:\n  f:\n    image: i\n    readonly_root_filesystem: {switch}\n    {field}:\n      key: {value}\n"
    )
    (tmp_path / "stack.yml").write_text(text)
    recorder.requests.clear()
    command = [faas_cli, "deploy", "-f", "stack.yml"]
    subprocess.run(command, cwd=tmp_path, env=environment | VARIABLES, capture_output=True, check=False, timeout=30)
    theirs = recorder.requests[0].body if recorder.requests else None
    assert what_we_send(text) == theirs
