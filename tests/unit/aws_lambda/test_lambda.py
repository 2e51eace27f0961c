"""Functions on Lambda: errors, slots, reports, sizes, payloads, and the profiles of their models."""

import asyncio
import base64
import io
import json
import os
import zipfile
from itertools import product
from pathlib import Path
from threading import Event
from typing import Any, cast

import numpy as np
import pytest
from botocore import exceptions
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.interfaces import InstanceRequest, ModelRepository
from gnomon_core.lambda_envelope import ENVELOPE_BYTES, INLINE_BYTES, LIMIT_BYTES, Call, EnvelopeError, Reply
from gnomon_core.profiles import LatencyTable, ModelProfile
from gnomon_planner.billing import LAMBDA
from gnomon_platforms.aws_lambda import recipes as packages
from gnomon_platforms.aws_lambda.client import Clients, aws_errors
from gnomon_platforms.aws_lambda.invocation import Report, read_tail
from gnomon_platforms.aws_lambda.platform import LambdaPlatform, UsageTotals
from gnomon_platforms.aws_lambda.profiling import (
    FunctionNeeds,
    LambdaProfiles,
    Measured,
    MeasurementPlan,
    Table,
    check_budget,
    estimate,
    measured,
    path_of,
)
from gnomon_platforms.aws_lambda.recipes import zip_package
from gnomon_platforms.aws_lambda.resources import LambdaOptions, cores_of, invoke_usd, memory_mb
from gnomon_platforms.aws_lambda.s3_transfer import ADDRESS_RENEWED_S, ReplyKey, ReplyKeys, S3Transfer
from gnomon_platforms.images import BuiltImages
from tests.made_up_models import sold_by_memory
from tests.platform_testing import Recorder
from tests.virtual_clock import VirtualClock

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
    with pytest.raises(GnomonError) as refused, aws_errors("deploy f"):
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
def reply_keys(clients: Clients, clock: VirtualClock) -> ReplyKeys:
    return ReplyKeys(S3Transfer(clients, "bucket", "gnomon"), "echo-1-abcdef", clock)


def result(reply_keys: ReplyKeys) -> ReplyKey:
    reply_key = reply_keys.for_result()
    assert reply_key is not None
    return reply_key


def test_transfer_keys_are_unique_and_covered_by_the_lifecycle_rule(reply_keys: ReplyKeys) -> None:
    keys = [str(reply_keys.for_batch()) for _ in range(3)] + [result(reply_keys).key for _ in range(3)]
    assert len(set(keys)) == 6
    [rule] = json.loads(LIFECYCLE.read_bytes())["Rules"]
    assert all(key.startswith(rule["Filter"]["Prefix"]) for key in keys)


def test_unused_reply_key_is_reused_but_never_shared(reply_keys: ReplyKeys) -> None:
    reply_key = result(reply_keys)
    assert f"/{reply_key.key}?" in reply_key.address
    reply_keys.give_back(reply_key)
    assert reply_keys.for_result() == reply_key
    assert result(reply_keys).key != reply_key.key


async def test_slot_address_outlives_its_invoke(reply_keys: ReplyKeys, clock: VirtualClock) -> None:
    reply_key = result(reply_keys)
    await clock.advance(ADDRESS_RENEWED_S)
    reply_keys.give_back(reply_key)
    assert reply_keys.for_result() == reply_key
    reply_keys.give_back(reply_key)
    await clock.advance(1.0)
    assert result(reply_keys).key != reply_key.key


def test_without_a_bucket_there_are_none(clients: Clients, clock: VirtualClock) -> None:
    nowhere = ReplyKeys(S3Transfer(clients, None, "gnomon"), "echo-1-abcdef", clock)
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
    spent = UsageTotals().plus(cold, 512).plus(warm, 512)
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
def test_any_bytes_survive_the_way_back(frames: bytes) -> None:
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


IDENTITY = {"model": "net@1", "program": "abc", "region": "eu-west-1", "image": "image:1"}
WANTED = FunctionNeeds("net@1", "abc", "image:1", 1769, 1)


def cell(memory_mb: int, batch: int, *, cold_s: tuple[float, ...] = ()) -> Measured:
    seconds = batch * 0.1 * 1769 / memory_mb
    return Measured(memory_mb, batch, seconds, 0.02, seconds, 300, (seconds,), cold_s)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    table = Table.open(path_of(tmp_path, "net@1", "eu-west-1"), IDENTITY)
    for size_mb in (885, 1769, 3538):
        for batch in (1, 4):
            table.add(cell(size_mb, batch, cold_s=(0.8,) if batch == 1 else ()))
    table.add(cell(7076, 1))
    return tmp_path


def found(folder: Path, needs: FunctionNeeds = WANTED, region: str = "eu-west-1") -> ModelProfile | None:
    return LambdaProfiles(folder).find(needs, region)


def test_profile_holds_every_memory_size_measured_for_smallest_and_largest_batch(folder: Path) -> None:
    profile = found(folder)
    assert set(profile.memories.seconds) == {885, 1769, 3538}, "7,076 MB have not been measured for a batch of 4"
    assert profile.at(3538, 4) == pytest.approx(0.2)
    assert profile.at(885, 2) == pytest.approx(0.4, rel=0.01), "between two measured batches on the line between them"
    assert profile.at(1, 4) == pytest.approx(0.4), "by cores it is the own size"
    assert profile.at(2, 1) is None
    assert profile.body_start_s == 0.8
    assert profile.provenance["region"] == "eu-west-1"


def test_memory_sizes_with_different_inner_batches_are_kept(folder: Path) -> None:
    """`gnomon lambda-profile --grid` does so after a run without."""
    table = Table.open(path_of(folder, "net@1", "eu-west-1"), IDENTITY)
    table.add(cell(1769, 2))
    for batch in (1, 3, 4):
        table.add(cell(2048, batch))
    profile = found(folder)
    assert set(profile.memories.seconds) == {885, 1769, 2048, 3538}
    assert profile.at(885, 3) == pytest.approx(0.3 * 1769 / 885)
    assert profile.at(1, 2) == pytest.approx(0.2), "by cores it is the own size"


def test_memory_sizes_are_kept_with_a_profile_on_disk() -> None:
    profile = sold_by_memory((0.1, 0.2), (885, 1769, 3538))
    again = ModelProfile.from_json(json.loads(json.dumps(profile.to_json())))
    assert again == profile
    assert again.at(3538, 2) == pytest.approx(0.1)


def test_an_own_size_that_was_not_measured_leaves_the_function_to_be_learned(folder: Path) -> None:
    profile = found(folder, FunctionNeeds("net@1", "abc", "image:1", 2048, 1))
    assert profile.whole == LatencyTable({})
    assert set(profile.memories.seconds) == {885, 1769, 3538}


def test_less_than_the_function_s_limit_is_not_offered(folder: Path) -> None:
    profile = found(folder, FunctionNeeds("net@1", "abc", "image:1", 1769, 1, least_mb=1024))
    assert set(profile.memories.seconds) == {1769, 3538}
    assert found(folder, FunctionNeeds("net@1", "abc", "image:1", 4096, 1, least_mb=4096)) is None


@pytest.mark.parametrize(
    ("needs", "region"),
    [
        (FunctionNeeds("net@2", "abc", "image:1", 1769, 1), "eu-west-1"),
        (FunctionNeeds("net@1", "other", "image:1", 1769, 1), "eu-west-1"),
        (FunctionNeeds("net@1", "abc", "image:2", 1769, 1), "eu-west-1"),
        (WANTED, "us-east-1"),
    ],
)
def test_measurements_of_anything_else_are_left_alone(folder: Path, needs: FunctionNeeds, region: str) -> None:
    assert found(folder, needs, region) is None


def test_profile_is_read_again_when_it_grows_and_ignored_when_invalid(folder: Path) -> None:
    models = LambdaProfiles(folder)
    assert models.find(WANTED, "eu-west-1") is not None
    path = path_of(folder, "net@1", "eu-west-1")
    table = Table.open(path, IDENTITY)
    table.add(cell(7076, 4))
    profile = models.find(WANTED, "eu-west-1")
    assert 7076 in profile.memories.seconds
    path.write_text("{")
    os.utime(path, (1, 1))
    assert models.find(WANTED, "eu-west-1") is None
    assert LambdaProfiles(None).find(WANTED, "eu-west-1") is None


def report(ms: float, *, init_ms: float = 0.0) -> Report:
    return Report(ms, -(-ms // 1), 1769, 100, init_ms)


def test_the_planner_s_price_is_the_platform_s() -> None:
    planned = LAMBDA["x86"].per_call(1769, np.array([0.106]))[0]
    assert invoke_usd(0.106, 1769) == pytest.approx(planned)


def test_the_example_of_the_docstring_costs_about_seventeen_cents() -> None:
    plan = MeasurementPlan(tuple(product(range(1024, 10_240, 342), range(1, 21))), 10)
    assert 0.1 < estimate(plan, plan.cells) < 0.4


def test_nothing_left_to_measure_costs_nothing() -> None:
    assert estimate(MeasurementPlan(((1769, 1),), 10), []) == 0.0


def test_cold_starts_are_kept_apart() -> None:
    cell = measured(1769, 4, [report(900, init_ms=700), report(100), report(110), report(120)])
    assert (cell.seconds, cell.cold_s) == (0.11, (0.7,))
    assert cell.runs_s == (0.1, 0.11, 0.12)
    with pytest.raises(GnomonError, match="no Invoke found a warm sandbox"):
        measured(1769, 4, [report(900, init_ms=700)])


def test_a_table_is_gone_on_with_only_where_it_is_of_the_same(tmp_path: Path) -> None:
    path, identity = tmp_path / "times.json", {"model": "net@1", "region": "us-east-1"}
    table = Table.open(path, identity)
    table.cost = 0.5
    table.add(Measured(1769, 1, 0.1, 0.02, 0.1, 90, (0.1, 0.1), ()))
    again = Table.open(path, identity)
    assert (again.cells, again.cost) == (table.cells, 0.5)
    assert Table.open(path, {**identity, "model": "net@2"}).cells == {}
    path.write_text("{")
    assert Table.open(path, identity).cells == {}


def test_a_run_that_costs_twice_what_was_expected_stops() -> None:
    said: list[str] = []
    check_budget(0.009, 0.001, said.append)
    check_budget(0.19, 0.1, said.append)
    with pytest.raises(GnomonError, match="twice"):
        check_budget(0.21, 0.1, said.append)
    assert len(said) == 1


STANDS_STILL_S = 5.0
"""Only an event loop that waits for the repository does not turn within it."""
SPEC = read_deployment({"service": "fn", "image": "gnomon/body:latest", "annotations": {"gnomon/model": "m@1"}})


class Slow:
    """A repository that answers when the event loop has done something else, and has nothing."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self.turned = loop, list[bool]()

    def get(self, reference: str) -> Any:
        turned = Event()
        self._loop.call_soon_threadsafe(turned.set)
        self.turned.append(turned.wait(STANDS_STILL_S))
        raise GnomonError(404, "model_not_found", f"There is no {reference}.")


class NothingBuilt:
    def resolve(self, image: str) -> None:
        del image


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", "testing"), ("SECRET_ACCESS_KEY", "testing"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.usefixtures("region")
async def test_the_event_loop_goes_on_while_a_slots_model_is_read() -> None:
    repository = Slow(asyncio.get_running_loop())
    options = LambdaOptions("arn:aws:iam::123456789012:role/gnomon")
    platform = LambdaPlatform(options, cast("ModelRepository", repository), cast("BuiltImages", NothingBuilt()))
    platform._listener = Recorder()
    for order in (platform.create(InstanceRequest(SPEC, 1, 1, None, {})), platform.prepare(SPEC)):
        with pytest.raises(GnomonError, match=r"no m@1"):
            await order
    await platform.stop()
    assert repository.turned == [True, True]
