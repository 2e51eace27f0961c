"""What `gnomon deploy` sends is, byte for byte, what the real `faas-cli deploy` sends.

`nasty/` is a stack file with everything in it that a careless reader gets wrong; `nasty/bodies.ndjson` are the requests' bodies.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NASTY = Path(__file__).parent / "nasty"
VARIABLES = {
    "SET": "hello",
    "TAG": "7",
    "SHOUT": "LOUD Voice",
    "WORDS": "foo boo bar",
    "PATH_LIKE": "a/b/c",
}
FLAGS = [
    "--filter",
    "o*",
    "-n",
    "other",
    "-e",
    "ONLY=flag",
    "-e",
    "EXTRA=a=b",
    "--label",
    "x=1",
    "--annotation",
    "gnomon/cores=2",
    "--secret",
    "zero",
    "--secret",
    "second",
    "--constraint",
    "ignored",
    "--readonly",
]
EXPECTED_WITH_FLAGS = (
    '{"service":"overridden","image":"ada/overridden:1.2","namespace":"other",'
    '"envProcess":"sh -c \'cat \\u0026\\u0026 echo \\"$HOME\\"\'",'
    '"envVars":{"EXTRA":"a=b","FLAG":"off","FROM":"one","ONE":"1.50","ONLY":"flag","THIRD":"two"},'
    '"constraints":["node.platform.os == linux"],"secrets":["zero","second","first"],"labels":{"x":"1"},'
    '"annotations":{"gnomon/cores":"2"},"limits":{"memory":"128Mi","cpu":"100m"},"requests":{"memory":"64Mi"},'
    '"readOnlyRootFilesystem":true}'
)


def expected() -> dict[str, bytes]:
    return {json.loads(line)["service"]: line for line in (NASTY / "bodies.ndjson").read_bytes().splitlines()}


def sent(recorder: Any) -> dict[str, bytes]:
    return {json.loads(seen.body)["service"]: seen.body for seen in recorder.requests}


def test_every_text_of_a_stack_file_arrives_as_it_was_written(recorder: Any, gnomon: Any) -> None:
    result = gnomon("deploy", "-f", "stack.yml", cwd=NASTY, GATEWAY=recorder.url, **VARIABLES)
    assert result.returncode == 0, result.stderr
    assert sent(recorder) == expected()


def test_flags_win_over_the_file_and_named_secrets_come_first(recorder: Any, gnomon: Any) -> None:
    result = gnomon("deploy", "-f", "stack.yml", *FLAGS, cwd=NASTY, GATEWAY=recorder.url, **VARIABLES)
    assert result.returncode == 0, result.stderr
    assert [seen.body.decode() for seen in recorder.requests] == [EXPECTED_WITH_FLAGS]


@pytest.mark.faas_cli
@pytest.mark.parametrize("flags", [[], FLAGS], ids=["plain", "flags"])
def test_the_real_faas_cli_sends_the_same(recorder: Any, environment: dict[str, str], flags: list[str]) -> None:
    faas_cli = shutil.which("faas-cli")
    if faas_cli is None:
        pytest.skip("no faas-cli on PATH")
    command = [faas_cli, "deploy", "-f", "stack.yml", *flags]
    subprocess.run(
        command, cwd=NASTY, env={**environment, **VARIABLES, "GATEWAY": recorder.url}, check=True, capture_output=True, timeout=30
    )
    if flags:
        assert [seen.body.decode() for seen in recorder.requests] == [EXPECTED_WITH_FLAGS]
    else:
        assert sent(recorder) == expected()
