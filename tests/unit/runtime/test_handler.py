"""What the author of a handler.py can rely on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnomon_core.launch import Launch
from gnomon_core.wire import Frame
from gnomon_runtime.handler import load_application
from tests.unit.runtime.handlers import Make, answer, batch, headers


def test_a_handler_of_the_python3_http_template_runs_unchanged(make: Make) -> None:
    application = make("""
        from .words import greeting

        def handle(event, context):
            return {
                "statusCode": 201,
                "body": {"said": greeting(event.body.decode()), "method": event.method, "path": event.path,
                         "x": event.query["x"], "all": event.query.getlist("x"), "number": event.query.get("x", type=int),
                         "token": event.headers.get("x-token"), "host": event.headers["HOST"], "none": event.headers.get("No"),
                         "pairs": len(dict(event.headers)), "on": bool(context.hostname), "empty": event.query.get("empty")},
                "headers": {"X-Answer": "yes"},
            }
    """, {"words.py": "def greeting(name): return f'hello {name}'"})  # fmt: skip

    (member,) = answer(application, b"ada")

    assert member.code == 201
    assert headers(member) == ["Content-Type: application/json", "X-Answer: yes"]
    assert json.loads(bytes(member.body)) == {
        "said": "hello ada", "method": "POST", "path": "/a b", "x": "1", "all": ["1", "2"], "number": 1,
        "token": "t", "host": "example.org", "none": None, "pairs": 3, "on": True, "empty": "",
    }  # fmt: skip


def test_a_handler_of_the_python3_flask_template_takes_the_text(make: Make) -> None:
    assert answer(make("def handle(req): return req.upper()"), "é".encode())[0].body == "É".encode()


def test_raw_body_gives_the_flask_style_handler_bytes(make: Make) -> None:
    application = make("def handle(req): return str(type(req))", RAW_BODY="true")
    assert answer(application, b"x")[0].body == b"<class 'bytes'>"


@pytest.mark.parametrize(
    ("expression", "code", "body", "content_type"),
    [
        ('"text"', 200, b"text", "text/plain; charset=utf-8"),
        ('b"\\x00\\xff"', 200, b"\x00\xff", "application/octet-stream"),
        ('bytearray(b"x")', 200, b"x", "application/octet-stream"),
        ("None", 200, b"", "text/plain; charset=utf-8"),
        ('{"label": "cat"}', 200, b'{"label": "cat"}', "application/json"),
        ("[1, 2]", 200, b"[1, 2]", "application/json"),
        ('{"statusCode": 404}', 404, b"", "text/plain; charset=utf-8"),
        ('{"statusCode": "418", "body": 3}', 418, b"3", "text/plain; charset=utf-8"),
        ('{"body": [1]}', 200, b"[1]", "application/json"),
        ('{"body": "<b>", "headers": {"content-type": "text/html"}}', 200, b"<b>", "text/html"),
        ('{"body": "x", "headers": [("Content-Type", "a/b")]}', 200, b"x", "a/b"),
        ('("gone", 410)', 410, b"gone", "text/plain; charset=utf-8"),
        ('("x", {"Content-Type": "a/b"})', 200, b"x", "a/b"),
        ('("x", 202, {"Content-Type": "a/b"})', 202, b"x", "a/b"),
        ('(part for part in ["a", b"b", {"c": 1}])', 200, b'ab{"c": 1}\n', "text/plain; charset=utf-8"),
    ],
)
def test_every_form_of_answer(make: Make, expression: str, code: int, body: bytes, content_type: str) -> None:
    (member,) = answer(make(f"def handle(event, context): return {expression}"), b"")
    assert (member.code, bytes(member.body)) == (code, body)
    assert [line.partition(": ")[2] for line in headers(member) if line.lower().startswith("content-type:")] == [content_type]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("return object()", "a body of type object"),
        ('return {"statusCode": 99}', "a status of 99"),
        ('return {"statusCode": "ok"}', "a status of 'ok'"),
        ('return {"body": {"x": {1}}}', "not JSON"),
        ('return {"body": {"x": float("nan")}}', "not JSON"),
        ("return (1, 2, 3, 4)", "a tuple of 4"),
        ('return {"headers": {"X": "a\\r\\nSet-Cookie: b"}}', "header 'X'"),
        ('return {"headers": {"A: b\\nX": "a"}}', "cannot be sent"),
        ('return {"headers": {"X": "\\u20ac"}}', "HTTP cannot carry"),
        ('return {"headers": 5}', "neither a dict"),
        ('raise ValueError("the password is 1234")', "raised ValueError"),
        ("raise SystemExit(0)", "raised SystemExit"),
        ("return 1 / 0", "raised ZeroDivisionError"),
    ],
)
def test_what_cannot_be_an_answer_is_a_500_that_says_why(make: Make, statement: str, says: str) -> None:
    (member,) = answer(make(f"def handle(event, context): {statement}"), b"")
    assert member.code == 500
    assert says in json.loads(bytes(member.body))["error"]["message"]
    assert b"1234" not in bytes(member.body)
    assert b"Traceback" not in bytes(member.body)


def test_the_traceback_is_in_the_log(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    answer(make('def handle(event, context): raise ValueError("of interest")'), b"")
    assert "ValueError: of interest" in capfd.readouterr().err


def test_a_handler_chooses_its_own_error(make: Make) -> None:
    application = make("""
        from gnomon_core.errors import bad_request
        def handle(event, context): raise bad_request("no_image", "Send an image.")
    """)
    (member,) = answer(application, b"")
    assert member.code == 400
    assert json.loads(bytes(member.body))["error"] == {"code": "no_image", "message": "Send an image."}


def test_the_folder_is_a_package(make: Make) -> None:
    application = make(
        "from function import ANSWER\nfrom function.deep.inner import more\ndef handle(event, context): return ANSWER + more",
        {
            "__init__.py": "ANSWER = 'a'",
            "deep/inner.py": "from ..tail import more",
            "deep/__init__.py": "",
            "tail.py": "more = 'b'",
        },
    )
    assert answer(application, b"")[0].body == b"ab"


def test_the_context_knows_the_budget_and_a_changed_size(make: Make) -> None:
    application = make("def handle(event, context): return [context.function, context.cores, context.budget_s]")
    application.resize(4)
    frame = batch(b"")
    frame.budget_s = 0.5
    result = application.run(frame)
    assert isinstance(result, Frame)
    assert json.loads(bytes(result.members[0].body)) == ["echo", 4, 0.5]


@pytest.mark.parametrize("source", ["x = 1", "import no_such_module_here\ndef handle(event, context): ..."])
def test_a_handler_that_cannot_serve_is_refused_at_the_start(make: Make, source: str) -> None:
    with pytest.raises(ImportError):
        make(source)


def test_a_handler_may_bring_an_application_of_its_own(make: Make) -> None:
    application = make("""
        def gnomon_application(launch):
            return Own()
        class Own:
            def hello(self): return {"kind": "own"}
    """)
    assert application.hello() == {"kind": "own"}


def test_a_missing_requirement_is_named_in_the_log(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ImportError):
        make("import no_such_module_here")
    assert "name the package that has it in requirements.txt" in capfd.readouterr().err


def test_a_folder_without_a_handler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"holds no handler\.py"):
        load_application(Launch("handler", "f", "f-1", options={"folder": str(tmp_path)}))
