"""Lambda: errors, slots, reports, sizes, payloads."""

import base64
import io
import json
import os
import zipfile
from pathlib import Path

import pytest
from botocore import exceptions
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.clock import VirtualClock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.lambda_envelope import ENVELOPE_BYTES, INLINE_BYTES, LIMIT_BYTES, Call, EnvelopeError, Reply
from gnomon_platforms.aws_lambda import recipes as packages
from gnomon_platforms.aws_lambda.client import Clients, told
from gnomon_platforms.aws_lambda.invocation import Report, read_tail
from gnomon_platforms.aws_lambda.platform import Spent
from gnomon_platforms.aws_lambda.recipes import zip_package
from gnomon_platforms.aws_lambda.resources import LambdaOptions, cores_of, invoke_usd, memory_mb
from gnomon_platforms.aws_lambda.s3_transfer import ADDRESS_RENEWED_S, Place, Places, S3Transfer

ROLE = "arn:aws:iam::123456789012:role/gnomon"


def client_error(code: str, message: str = "no") -> exceptions.ClientError:
    return exceptions.ClientError({"Error": {"Code": code, "Message": message}}, "CreateFunction")


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (exceptions.NoCredentialsError(), "aws_credentials", "aws configure"),
        (exceptions.PartialCredentialsError(provider="env", cred_var="aws_secret_access_key"), "aws_credentials", "AWS_PROFILE"),
        (exceptions.NoRegionError(), "aws_region", "AWS_REGION"),
        (client_error("ExpiredTokenException"), "aws_credentials", "aws sso login"),
        (client_error("UnrecognizedClientException"), "aws_credentials", "AWS_PROFILE"),
        (
            client_error("AccessDeniedException", "not authorized to perform lambda:CreateFunction"),
            "aws_denied",
            "gateway-policy.json",
        ),
        (
            client_error("InvalidParameterValueException", "The role defined for the function cannot be assumed by Lambda."),
            "aws_role",
            "trust-policy.json",
        ),
        (
            client_error("InvalidParameterValueException", "Reserved keys used in this request: AWS_REGION"),
            "aws_refused",
            "Correct",
        ),
        (exceptions.EndpointConnectionError(endpoint_url="https://lambda.nowhere"), "aws_unreachable", "AWS_ENDPOINT_URL"),
        (
            exceptions.WaiterError("FunctionActiveV2", "failed", {"Configuration": {"StateReason": "The image is gone."}}),
            "aws_refused",
            "The image is gone.",
        ),
    ],
)
def test_error_line_names_the_remedy(error: Exception, code: str, hint: str) -> None:
    with pytest.raises(GnomonError) as refused, told("deploy f"):
        raise error
    assert (refused.value.status, refused.value.code) == (503, code)
    assert hint in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"role": ""}, "role_missing"),
        ({"role": "gnomon"}, "role_invalid"),
        ({"role": ROLE, "prefix": "a b"}, "prefix_invalid"),
        ({"role": ROLE, "concurrency": 0}, "concurrency_invalid"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_asked(options: dict[str, str], code: str) -> None:
    with pytest.raises(GnomonError) as refused:
        LambdaOptions(**options)  # type: ignore[arg-type]
    assert (refused.value.status, refused.value.code) == (400, code)


LIFECYCLE = Path(__file__).parents[3] / "deploy" / "lambda" / "lifecycle.json"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> Clients:
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    return Clients(1)


@pytest.fixture
def places(clients: Clients, clock: VirtualClock) -> Places:
    return Places(S3Transfer(clients, "bucket", "gnomon"), "echo-1-abcdef", clock)


def result(places: Places) -> Place:
    place = places.for_result()
    assert place is not None
    return place


def test_no_key_comes_twice_and_the_bucket_s_rule_covers_each(places: Places) -> None:
    keys = [str(places.for_batch()) for _ in range(3)] + [result(places).key for _ in range(3)]
    assert len(set(keys)) == 6
    [rule] = json.loads(LIFECYCLE.read_bytes())["Rules"]
    assert all(key.startswith(rule["Filter"]["Prefix"]) for key in keys)


def test_a_place_that_nothing_was_put_into_serves_once_more_and_never_two_at_once(places: Places) -> None:
    place = result(places)
    assert f"/{place.key}?" in place.address
    places.give_back(place)
    assert places.for_result() == place
    assert result(places).key != place.key


async def test_slot_address_outlives_its_invoke(places: Places, clock: VirtualClock) -> None:
    place = result(places)
    await clock.advance(ADDRESS_RENEWED_S)
    places.give_back(place)
    assert places.for_result() == place
    places.give_back(place)
    await clock.advance(1.0)
    assert result(places).key != place.key


def test_without_a_bucket_there_are_none(clients: Clients, clock: VirtualClock) -> None:
    nowhere = Places(S3Transfer(clients, None, "gnomon"), "echo-1-abcdef", clock)
    assert nowhere.for_batch() is None
    assert nowhere.for_result() is None


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


def test_truncated_report_is_ignored() -> None:
    assert read_tail(None).report is None
    assert read_tail("!!").report is None
    assert read_tail(encoded("REPORT RequestId: 8f5\tDuration: 12.34 ms\n")).report is None
    assert read_tail(encoded('{"type":"platform.report","record":7}\n')).report is None


def spec(**fields: object) -> FunctionSpec:
    return read_deployment({"service": "f", "image": "functions/alpine", **fields})


@pytest.mark.parametrize(("cores", "size_mb"), [(1, 1769), (2, 3538), (5, 8845), (6, 10_240)])
def test_a_core_is_1769_megabytes_and_the_largest_size_counts_as_six(cores: int, size_mb: int) -> None:
    assert memory_mb(spec(), cores) == size_mb


def test_seven_cores_do_not_fit() -> None:
    with pytest.raises(GnomonError, match="12383 MB") as refused:
        memory_mb(spec(), 7)
    assert (refused.value.status, refused.value.code) == (503, "no_capacity")


def test_a_memory_limit_asks_for_no_less_and_the_annotation_for_exactly_that() -> None:
    assert memory_mb(spec(limits={"memory": "4Gi"}), 1) == 4096
    assert memory_mb(spec(limits={"memory": "64Mi"}), 1) == 1769
    assert memory_mb(spec(limits={"memory": "4Gi"}, annotations={"gnomon/memory-mb": "900"}), 1) == 900
    assert cores_of(900) == pytest.approx(0.509, abs=0.001)


def test_half_a_core_may_be_asked_for_as_a_limit_and_changes_nothing_below_one() -> None:
    assert memory_mb(spec(limits={"cpu": "0.5"}), 1) == 1769
    assert memory_mb(spec(limits={"cpu": "2.5"}), 1) == 4423


def test_an_invoke_costs_what_equation_1_says() -> None:
    # 0.120 s · 1769/1024 GB · 1.66667e-5 + 2e-7
    assert invoke_usd(0.120, 1769) == pytest.approx(3.655e-6, rel=1e-3)
    # 10 GB of /tmp beyond the free half: 9.5 · 3.09e-8 a second
    assert invoke_usd(1.0, 1024, 10_240) - invoke_usd(1.0, 1024) == pytest.approx(9.5 * 3.09e-8)


def test_cost_is_the_sum_of_reports() -> None:
    cold = Report(duration_ms=100.0, billed_ms=600.0, memory_mb=1769, used_mb=80, init_ms=500.0)
    warm = Report(duration_ms=100.0, billed_ms=100.0, memory_mb=3538, used_mb=90)
    spent = Spent().plus(cold, 512).plus(warm, 512)
    assert (spent.invokes, spent.cold_starts) == (2, 1)
    assert spent.billed_s == pytest.approx(0.7)
    assert spent.cpu_s == pytest.approx(0.6 * 1 + 0.1 * 2)
    assert spent.cost == pytest.approx(invoke_usd(0.6, 1769) + invoke_usd(0.1, 3538))


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
def test_invalid_invoke_payload_is_refused(document: object) -> None:
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
def test_invalid_reply_is_refused(document: object) -> None:
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


def test_archive_that_lambda_refuses_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "MAX_UNPACKED_BYTES", 10_000)
    with pytest.raises(GnomonError) as refused:
        zip_package(handler(tmp_path))
    assert refused.value.code == "package_too_large"
