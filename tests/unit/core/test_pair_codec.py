"""What a Body says of its Shadows with its answers, and what somebody else's code may say instead."""

import json
from typing import Any

import pytest

from gnomon_core.pairs import ELSEWHERE, MAX_SHADOWS, Pair, pair_from_json, pair_to_json, shadows_of
from gnomon_core.wire import Frame, Kind

HOME, AFAR = Pair(2, (1, 2), (0, 1, 1, 2)), Pair(1, (1, 2), (0, 0, 1, 1), ELSEWHERE)
SAID = {"shadow": "s-1", **pair_to_json(HOME)}


def result(head: Any) -> Frame:
    return Frame(Kind.RESULT, 1, head=head if isinstance(head, bytes) else json.dumps(head).encode())


def test_shadows_are_read_in_the_order_of_their_rows() -> None:
    said = [{"shadow": name, **pair_to_json(pair)} for name, pair in (("s-2", AFAR), ("s-1", HOME))]
    found = shadows_of(result({"outputs": [], "shadows": said}))
    assert list(found.items()) == [("s-2", AFAR), ("s-1", HOME)]
    assert pair_from_json(json.loads(json.dumps(pair_to_json(AFAR)))) == AFAR


@pytest.mark.parametrize(
    "head",
    [
        b"",
        {},
        {"pair": []},
        {"shadows": []},
        {"shadows": None},
        {"shadows": 3},
        {"shadows": {"s-1": {}}},
        {"shadows": ["s-1"]},
        {"shadows": [pair_to_json(HOME)]},
        {"shadows": [SAID | {"cores": 0}]},
        {"shadows": [SAID | {"cores": 1 << 40}]},
        {"shadows": [SAID | {"cores": float("inf")}]},
        {"shadows": [SAID | {"blocks": [-1]}]},
        {"shadows": [SAID | {"blocks": 7}]},
        {"shadows": [SAID | {"split": [0, -1]}]},
        {"shadows": [SAID | {"split": ["x"]}]},
        {"shadows": [SAID | {"split": [0] * 2000}]},
        {"shadows": [SAID | {"shadow": f"s-{number}"} for number in range(MAX_SHADOWS + 1)]},
        {"shadows": [SAID | {"shadow": "x" * (1 << 16)}]},
        b"[" * 5000,
        b'{"shadows": [{"shadow": "s-1"',
        b"[]",
        b"\xff\xfe",
    ],
    ids=lambda head: str(head)[:40],
)
def test_report_without_shadows_is_of_a_body_alone(head: Any) -> None:
    assert shadows_of(result(head)) == {}
