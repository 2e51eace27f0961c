"""Small values and their documents: names, buffer plans, results of batches, Knative's statistics, installation hints."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core import protobuf
from gnomon_core.addresses import bracketed, from_this_machine, host_and_port, http_url, unbracketed
from gnomon_core.errors import GnomonError
from gnomon_core.packaging import how_to_install
from gnomon_core.scaling import SetBufferPlan, plan_from_json, plan_to_json
from gnomon_core.settings import SCALE_TABLE, TABLE, read_settings, refuse_misspelt
from gnomon_core.wire import Frame, Kind, Member, Refusal, decode, encode, error_member, error_result, same_for_all, stale_result
from tests.refusals import refused

HOSTS = st.ip_addresses().map(str) | st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z]{2,5}){0,3}", fullmatch=True)


@given(HOSTS, st.integers(1, 65535), st.sampled_from(["", "/", "/metrics", "/a/b?c=d"]))
def test_a_url_is_read_as_the_host_and_the_port_that_it_was_made_of(host: str, port: int, path: str) -> None:
    url = http_url(host, port, path)
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname, parts.port) == ("http", host, port)
    assert url.endswith(path)


@pytest.mark.parametrize(
    ("host", "written"),
    [("10.0.0.1", "10.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]"), ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]")],
)
def test_only_ipv6_stands_in_brackets(host: str, written: str) -> None:
    assert (bracketed(host), host_and_port(host, 80)) == (written, f"{written}:80")


@given(HOSTS)
def test_brackets_change_nothing_where_they_are_already_or_are_not_yet(host: str) -> None:
    written = bracketed(host)
    assert (bracketed(written), unbracketed(written), unbracketed(host)) == (written, host, host)


@pytest.mark.parametrize("written", ["[::1", "::1]", "[::1]:80", "10.0.0.1:80", "[10.0.0.1]", "[]", "http://localhost"])
def test_invalid_host_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        unbracketed(written)


@pytest.mark.parametrize(
    ("bound", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "::1"), ("10.0.0.1", "10.0.0.1")]
)
def test_wildcard_address_is_reached_over_loopback(bound: str, reached: str) -> None:
    assert from_this_machine(bound) == reached


@pytest.mark.parametrize(
    ("labels", "annotations", "meant"),
    [
        ({"com.openfaas.scale.mim": "2"}, {}, "com.openfaas.scale.min"),
        ({"com.openfaas.scale.maxx": "2"}, {}, "com.openfaas.scale.max"),
        ({}, {"gnomo/max-batch": "3"}, "gnomon/max-batch"),
        ({}, {"gnomonn/slo-ms": "3"}, "gnomon/slo-ms"),
    ],
)
def test_a_key_that_is_nearly_ours_is_refused_with_the_key_that_was_meant(
    labels: dict[str, str], annotations: dict[str, str], meant: str
) -> None:
    with refused(400, "unknown_setting", hint=f"Did you mean {meant}?"):
        refuse_misspelt(labels, annotations)


@pytest.mark.parametrize(
    "key",
    ["com.openfaas.scale.custom", "com.openfaas.scale.up.window", "com.openfaas.health.http.path", "prometheus.io/scrape",
     "example.com/max-batch", "topic", "x" * 100_000],
)  # fmt: skip
def test_keys_of_other_tools_pass(key: str) -> None:
    refuse_misspelt({key: "x"}, {key: "x"})


def test_every_known_key_passes() -> None:
    refuse_misspelt({setting.key: "x" for setting in SCALE_TABLE}, {setting.key: "x" for setting in TABLE})


def test_an_unknown_gnomon_annotation_names_the_nearest_known_one() -> None:
    with pytest.raises(GnomonError) as refused:
        read_settings({}, {"gnomon/autoscalr": "kpa"})
    assert refused.value.hint.startswith("Did you mean gnomon/autoscaler? Known ones: gnomon/model, ")


def test_deterministic_answers_need_batches_of_one() -> None:
    assert read_settings({}, {"gnomon/deterministic": "true", "gnomon/autoscaler": "asyfunc"}).max_batch == 1
    with pytest.raises(GnomonError, match="gnomon/max-batch is 4"):
        read_settings({}, {"gnomon/deterministic": "true", "gnomon/max-batch": "4"})


@pytest.mark.parametrize("plan", [SetBufferPlan(8, 0.05), SetBufferPlan(1, 0.0), SetBufferPlan(32, 1 / 3)])
def test_written_plan_is_read_back(plan: SetBufferPlan) -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_unknown_keys_of_a_plan_are_ignored() -> None:
    assert plan_from_json({"policy": "batch", "max_batch": 4, "max_wait_s": 0}) == SetBufferPlan(4, 0.0)


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        None,
        7,
        {"max_batch": 4},
        {"max_wait_s": 0.1},
        {"max_batch": 0, "max_wait_s": 0.1},
        {"max_batch": -3, "max_wait_s": 0.1},
        {"max_batch": "many", "max_wait_s": 0.1},
        {"max_batch": None, "max_wait_s": 0.1},
        {"max_batch": float("inf"), "max_wait_s": 0.1},
        {"max_batch": 4, "max_wait_s": -0.1},
        {"max_batch": 4, "max_wait_s": float("nan")},
        {"max_batch": 4, "max_wait_s": float("inf")},
        {"max_batch": 4, "max_wait_s": [0.1]},
    ],
    ids=str,
)
def test_invalid_plan_is_refused(said: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, OverflowError)):
        plan_from_json(said)


def test_a_string_is_its_number_its_length_and_its_bytes() -> None:
    # Field 2, wire type 2: 2·8 + 2 = 0x12, then 7 bytes. The documentation's own example.
    assert protobuf.read(b"\x12\x07testing") == {2: [b"testing"]}


def test_a_varint_takes_seven_bits_a_byte() -> None:
    # 150 = 1·128 + 22: the lowest seven bits first. The documentation's own example.
    assert protobuf.read(b"\x08\x96\x01") == {1: [150]}
    assert protobuf.read(b"\x0a\x96\x01" + b"x" * 150) == {1: [b"x" * 150]}


def test_fields_of_other_types_are_skipped() -> None:
    # A fixed 64-bit number, a fixed 32-bit one and a message, before the double.
    data = b"\x09" + bytes(8) + b"\x15" + bytes(4) + b"\x1a\x00" + b"\x21" + bytes(6) + b"\x04\x40"

    assert protobuf.double(protobuf.read(data), 4) == 2.5


@pytest.mark.parametrize("data", [b"\x12", b"\x12\x07test", b"\x08", b"\x08" + b"\xff" * 11, b"\x0b", b"\x09\x00"])
def test_truncated_and_endless_data_is_not_a_message(data: bytes) -> None:
    with pytest.raises(protobuf.WireFormatError):
        protobuf.read(data)


def test_a_double_is_eight_bytes_and_0_where_it_is_left_out() -> None:
    # Field 2, wire type 1: 2·8 + 1 = 0x11; 2.5 is 0x4004000000000000, the lowest byte first.
    assert protobuf.double(protobuf.read(b"\x11" + bytes(6) + b"\x04\x40"), 2) == 2.5
    assert protobuf.double(protobuf.read(b""), 2) == 0.0
    for other in (b"\x10\x01", b"\x15" + bytes(4)):
        with pytest.raises(protobuf.WireFormatError):
            protobuf.double(protobuf.read(other), 2)


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
    """An error that is read from an instance is what the instance says."""
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


ROOT = Path(__file__).parents[3]
PARTS = (
    "autoscaler",
    "cli",
    "coordinator",
    "core",
    "functions",
    "gateway-plugin",
    "planner",
    "platforms",
    "profiler",
    "simulator",
)
NAMED = re.compile(r"how_to_install\(['\"](\w+)['\"]\)")


def sources() -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for part in PARTS for path in (ROOT / part).rglob("*.py")}


def test_each_extra_that_is_named_is_one_of_the_projects() -> None:
    there = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    named = {extra for text in sources().values() for extra in NAMED.findall(text)}
    assert len(named) > 5, "nothing names one"
    assert named <= set(there)
    assert how_to_install("models").endswith("pip install '.[models]'.")


def test_extra_is_named_only_where_the_package_is_ours() -> None:
    assert not [path for path, text in sources().items() if "gnomon[" in text]
