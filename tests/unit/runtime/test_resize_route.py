"""How an image's process is told to use other cores: by whom, and by what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from gnomon_core.wire import Frame, Kind, encode
from gnomon_runtime.http_app import create_app
from tests.unit.runtime.conftest import forget_handlers

TOKEN = {"Authorization": "Bearer t0ken"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[FlaskClient]:
    forget_handlers()
    (tmp_path / "handler.py").write_text("def handle(event, context):\n    return str(context.cores)\n")
    app = create_app({"GNOMON_HANDLER_FOLDER": str(tmp_path), "GNOMON_BATCH_TOKEN": "t0ken", "GNOMON_CORES": "1"})
    yield app.test_client()
    forget_handlers()


def resize(**head: object) -> bytes:
    return encode(Frame(Kind.RESIZE, head=json.dumps(head).encode()))


def cores(client: FlaskClient) -> str:
    return client.get("/", environ_overrides={"RAW_URI": "/"}).text


def test_the_next_request_uses_the_new_cores(client: FlaskClient) -> None:
    assert cores(client) == "1"
    assert client.post("/gnomon/resize", data=resize(cores=4), headers=TOKEN).status_code == 204
    assert cores(client) == "4"


def test_only_the_gateway_may_say_so(client: FlaskClient) -> None:
    assert client.post("/gnomon/resize", data=resize(cores=4)).status_code == 401
    assert client.post("/gnomon/resize", data=resize(cores=4), headers={"Authorization": "Bearer x"}).status_code == 401
    assert cores(client) == "1"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "bad_frame"),
        (b"nonsense", "bad_frame"),
        (encode(Frame(Kind.PROBE)), "bad_cores"),
        (encode(Frame(Kind.RESIZE, head=b"[")), "bad_frame"),
        (resize(), "bad_cores"),
        (resize(cores=0), "bad_cores"),
        (resize(cores="2"), "bad_cores"),
        (resize(cores=True), "bad_cores"),
        (resize(cores=10**6), "bad_cores"),
    ],
)
def test_what_is_no_number_of_cores_is_refused(client: FlaskClient, body: bytes, code: str) -> None:
    answer = client.post("/gnomon/resize", data=body, headers=TOKEN)
    assert (
        answer.status_code,
        answer.get_json()["error"]["code"] if "error" in answer.get_json() else answer.get_json()["code"],
    ) == (400, code)
    assert cores(client) == "1"
