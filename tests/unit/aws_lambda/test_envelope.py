"""Frames in JSON documents, and packages: what crosses to Lambda."""

import io
import json
import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_core.lambda_envelope import ENVELOPE_BYTES, INLINE_BYTES, LIMIT_BYTES, Call, EnvelopeError, Reply
from gnomon_platforms.aws_lambda import recipes as packages
from gnomon_platforms.aws_lambda.recipes import zip_package


@given(st.binary(max_size=300), st.none() | st.text(max_size=20))
def test_any_bytes_survive_the_way_there(frame: bytes, reply_to: str | None) -> None:
    call = Call(frame=frame, reply_to=reply_to)
    assert Call.from_json(json.loads(json.dumps(call.to_json()))) == call
    assert json.loads(call.payload()) == call.to_json()


@given(st.binary(max_size=300))
def test_and_back(frames: bytes) -> None:
    reply = Reply(frames=frames)
    assert Reply.from_json(json.loads(json.dumps(reply.to_json()))) == reply


def test_the_largest_frame_that_travels_inside_fits_with_two_long_addresses() -> None:
    call = Call(frame=os.urandom(INLINE_BYTES), reply_to="https://" + "x" * 4000)
    size = len(call.payload())
    assert LIMIT_BYTES - ENVELOPE_BYTES < size <= LIMIT_BYTES
    assert INLINE_BYTES == 4_712_448


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"gnomon": 2, "frame": ""},
        {"gnomon": 1},
        {"gnomon": 1, "frame": "", "from": "https://x"},
        {"gnomon": 1, "frame": "!"},
        {"gnomon": 1, "frame": 7},
        {"gnomon": 1, "from": ["https://x"]},
    ],
)
def test_what_is_no_call_is_refused(document: object) -> None:
    with pytest.raises(EnvelopeError):
        Call.from_json(document)


@pytest.mark.parametrize(
    "document",
    [
        {"gnomon": 1},
        {"gnomon": 1, "frames": "", "stored_bytes": 3},
        {"gnomon": 1, "stored_bytes": -1},
        {"gnomon": 1, "stored_bytes": True},
        {"gnomon": 1, "too_large": "7"},
        {"errorMessage": "no", "errorType": "ValueError"},
    ],
)
def test_what_is_no_reply_is_refused(document: object) -> None:
    with pytest.raises(EnvelopeError):
        Reply.from_json(document)


def handler(folder: Path) -> Path:
    made = folder / "handler"
    (made / "__pycache__").mkdir(parents=True)
    (made / "__pycache__" / "handler.cpython-311.pyc").write_bytes(b"old")
    (made / "handler.py").write_text("def handle(event, context): return 'x'\n")
    tool = made / "tool"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o700)
    return made


def test_the_same_content_gives_the_same_package_and_another_user_can_read_it(tmp_path: Path) -> None:
    made = handler(tmp_path)
    first = zip_package(made)
    os.utime(made / "handler.py", (1, 1))
    assert zip_package(made) == first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        names = archive.namelist()
        modes = {entry.filename: entry.external_attr >> 16 & 0o777 for entry in archive.infolist()}
    assert {"function/handler.py", "gnomon_runtime/aws_lambda.py", "gnomon_core/wire.py"} <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]
    assert (modes["function/handler.py"], modes["function/tool"]) == (0o644, 0o755)
    assert len(first) < 1_000_000


def test_requirements_lie_where_python_finds_them_and_cannot_replace_our_own(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    (library / "gnomon_core").mkdir(parents=True)
    (library / "gnomon_core" / "wire.py").write_text("evil = 1\n")
    (library / "useful.py").write_text("x = 1\n")
    with zipfile.ZipFile(io.BytesIO(zip_package(handler(tmp_path), library))) as archive:
        assert archive.read("useful.py") == b"x = 1\n"
        assert b"evil" not in archive.read("gnomon_core/wire.py")
        assert len(archive.namelist()) == len(set(archive.namelist()))


def test_what_lambda_does_not_take_as_a_zip_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(GnomonError) as refused:
        zip_package(handler(tmp_path))
    assert refused.value.code == "package_too_large"
