"""Results of batches that nothing computed."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_core.wire import Frame, Kind, Member, Refusal, decode, encode, error_member, error_result, same_for_all, stale_result

ERRORS = st.builds(
    GnomonError,
    st.integers(400, 599),
    st.from_regex(r"[a-z_]{1,20}", fullmatch=True),
    st.text(max_size=50),
    st.text(max_size=50),
    st.none() | st.floats(0, 1e6),
)


def batch(members: int, epoch: int = 3) -> Frame:
    return Frame(Kind.BATCH, 7, epoch, members=[Member(0, 2, b"POST\n/\n\n", b"x")] * members)


def test_an_errors_member_bears_its_status_and_its_document() -> None:
    member = error_member(GnomonError(415, "unsupported_media_type", "It takes tensors.", "Send some."))
    assert (member.code, member.size, member.meta) == (415, 1, b"Content-Type: application/json")
    error = {"code": "unsupported_media_type", "message": "It takes tensors.", "hint": "Send some."}
    assert json.loads(bytes(member.body)) == {"error": error}


def test_when_to_try_again_is_told_too() -> None:
    member = error_member(GnomonError(503, "lambda_throttled", "Not now.", retry_after_s=4.2))
    assert member.meta.split(b"\n") == [b"Content-Type: application/json", b"Retry-After: 5"]


@given(ERRORS, st.integers(0, 50))
def test_every_member_gets_the_error_and_the_frame_travels(error: GnomonError, members: int) -> None:
    result = decode(encode(error_result(batch(members), error, b'{"pair": []}')))
    assert (result.kind, result.batch_id, result.epoch, result.head) == (Kind.RESULT, 7, 3, b'{"pair": []}')
    assert [(member.code, bytes(member.body)) for member in result.members] == [(error.status, error.body())] * members
    assert all(b"X-OpenFaaS-Internal" not in member.meta for member in result.members)


def test_an_error_is_the_platforms_until_it_has_travelled() -> None:
    """Whoever reads it from an instance reads what the instance says."""
    result = error_result(batch(2), GnomonError(503, "lambda_throttled", "Not now."))
    assert [type(member) for member in result.members] == [Refusal, Refusal]
    assert [type(member) for member in decode(encode(result)).members] == [Member, Member]


def test_a_batch_that_comes_too_late_learns_of_the_newest_epoch() -> None:
    result = stale_result(batch(2, epoch=3), 5)
    assert (result.batch_id, result.epoch, [member.code for member in result.members]) == (7, 5, [409, 409])
    error = json.loads(bytes(result.members[0].body))["error"]
    assert error["code"] == "stale_epoch"
    assert ("3" in error["message"], "5" in error["message"]) == (True, True)


def test_shared_answer_is_given_to_each_member() -> None:
    member = Member(302, 1, b"Location: http://example.com", b"")
    assert same_for_all(batch(3), member).members == [member] * 3
