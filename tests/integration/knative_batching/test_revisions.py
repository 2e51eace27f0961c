"""Requests of Revisions through gateways."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from gnomon_core.clock import WallClock
from gnomon_core.fleet import Instance, InstanceState
from gnomon_core.functions import FunctionKey
from gnomon_core.settings import Settings
from gnomon_core.wire import Frame, Kind, Member
from gnomon_gateway.api.revisions import RevisionApp
from gnomon_gateway.dispatch.latency import LearnedLatency
from gnomon_gateway.functions.function_runtime import FunctionDirectory, FunctionRuntime
from gnomon_gateway.http.server import GatewayServer
from gnomon_gateway.scheduling.policies import Immediate
from gnomon_platforms.knative.autoscaler.public_endpoints import ANSWERS, HEADERS
from gnomon_platforms.knative.batching.channel import CACHE_S, Tokens
from tests.integration.kubernetes_platform.scripted import Answer, Script, refusal, serving

KEY = FunctionKey("f-00001", "users")
NAMES = {"Knative-Serving-Revision": KEY.name, "Knative-Serving-Namespace": KEY.namespace}


class Telling:
    """A pod that answers with what it was asked."""

    unread = ()

    def __init__(self) -> None:
        self.metas: list[bytes] = []

    def run(self, frame: Frame, done: Callable[[Frame | None], None], stream: Callable[[Frame], None] | None = None) -> None:
        del stream
        self.metas += [bytes(member.meta) for member in frame.members]
        members = [
            Member(200, 1, b"", b"\n".join(bytes(member.meta).split(b"\n")[:3]) + b"\n" + bytes(member.body))
            for member in frame.members
        ]
        done(Frame(Kind.RESULT, frame.batch_id, members=members))

    def cancel(self, batch_id: int) -> None: ...

    async def probe(self, timeout_s: float) -> bool:
        del timeout_s
        return True


class Directory(FunctionDirectory):
    """The Revisions that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, FunctionRuntime] = {}

    def serve(self) -> Telling:
        runtime = FunctionRuntime(KEY, Settings(), Immediate(), LearnedLatency())
        self.known[str(KEY)] = runtime
        self.add(runtime)
        channel = Telling()
        runtime.instance_ready(Instance("pod-1", str(KEY), 1, "", 1, 0, InstanceState.READY, 0.0), channel)
        return channel


@pytest.fixture
async def directory() -> AsyncIterator[Directory]:
    made = Directory()
    yield made
    for runtime in made.known.values():
        runtime.close()


@pytest.fixture
async def user(directory: Directory) -> AsyncIterator[aiohttp.ClientSession]:
    server = GatewayServer(RevisionApp(directory, held_s=0.5), port=0)
    await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}", headers=NAMES) as session:
        yield session
    await server.stop()


@pytest.mark.parametrize("path", ["/", "/v2/models/x/infer", "/function/f", "/healthz", "/system/functions?namespace=a%20b"])
async def test_every_path_is_the_revisions(directory: Directory, user: aiohttp.ClientSession, path: str) -> None:
    directory.serve()
    async with user.put(path, data=b"body") as answer:
        plain, _, query = path.partition("?")
        assert (answer.status, await answer.text()) == (200, f"PUT\n{plain}\n{query}\nbody")


async def test_a_pod_learns_of_every_proxy_that_a_request_came_through(directory: Directory, user: aiohttp.ClientSession) -> None:
    """An ingress may add a line of its own behind the line that is there."""
    channel = directory.serve()
    lines = [("X-Forwarded-For", "192.0.2.7"), ("X-Forwarded-For", "10.0.0.1, 10.0.0.2")]
    async with user.get("/", headers=lines) as answer:
        assert answer.status == 200
    [meta] = channel.metas
    proxy_lines = [line for line in meta.split(b"\n") if line.startswith(b"x-forwarded-for: ")]
    assert proxy_lines == [b"x-forwarded-for: 192.0.2.7, 10.0.0.1, 10.0.0.2, 127.0.0.1"]


async def test_request_before_the_revision_is_known_waits(directory: Directory, user: aiohttp.ClientSession) -> None:
    waiting = asyncio.create_task(user.post("/early", data=b"kept"))
    await asyncio.sleep(0.1)
    directory.serve()
    async with await waiting as answer:
        assert (answer.status, await answer.text()) == (200, "POST\n/early\n\nkept")


async def test_request_for_an_unknown_revision_is_retryable(user: aiohttp.ClientSession) -> None:
    async with user.post("/", data=b"x") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert (await answer.json())["error"]["code"] == "no_such_revision"


async def test_request_without_a_revision_is_refused(directory: Directory, user: aiohttp.ClientSession) -> None:
    directory.serve()
    async with user.get("/", headers={"Knative-Serving-Revision": ""}) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "no_revision")


async def test_an_ingress_controller_sees_its_configuration_served(user: aiohttp.ClientSession) -> None:
    """Knative's ingress controllers ask each host so before a Route is Ready; activators and queue-proxies answer the same."""
    async with user.get("/healthz", headers={"K-Network-Probe": "probe", "K-Network-Hash": "ab12"}) as answer:
        assert (answer.status, answer.headers["K-Network-Hash"], await answer.read()) == (200, "ab12", b"")


async def test_page_reports_what_stands_before_the_pods_as_activators_do(user: aiohttp.ClientSession) -> None:
    async with user.get("/healthz", headers=HEADERS) as answer:
        assert (answer.status, await answer.read() in ANSWERS) == (200, True)


@pytest.mark.parametrize("probe", [{"K-Network-Probe": "queue"}, {"K-Network-Probe": "probe"}])
async def test_probes_of_somebody_else_are_refused_and_are_no_requests(
    directory: Directory, user: aiohttp.ClientSession, probe: dict[str, str]
) -> None:
    channel = directory.serve()
    async with user.get("/healthz", headers=probe) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, "unexpected_probe")
    assert channel.metas == []


SECRET = Answer({"kind": "Secret", "data": {"gnomon-batch-token": base64.b64encode(b"please\n").decode()}})


class Clock(WallClock):
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now_s(self) -> float:
        return self.time_s


@pytest.mark.parametrize(
    "trouble",
    [refusal(503, "ServiceUnavailable"), refusal(429, "TooManyRequests"), Answer(b"<html>")],
    ids=["503", "429", "proxy"],
)
async def test_a_token_that_could_not_be_read_is_asked_for_by_the_next_pod(trouble: Answer) -> None:
    with serving(Script([trouble, SECRET])) as api:
        tokens = Tokens(api, Clock())
        assert [await tokens.of("users", "gnomon-batch-token") for _ in range(2)] == ["", "please"]


@pytest.mark.parametrize(("first", "token"), [(SECRET, "please"), (refusal(404, "NotFound"), "")], ids=["there", "none"])
async def test_token_is_cached_for_half_a_minute(first: Answer, token: str) -> None:
    script, clock = Script([first, Answer({"data": {"gnomon-batch-token": base64.b64encode(b"new").decode()}})]), Clock()
    with serving(script) as api:
        tokens = Tokens(api, clock)
        assert [await tokens.of("users", "gnomon-batch-token") for _ in range(3)] == [token] * 3
        assert len(script.asked) == 1
        clock.time_s = CACHE_S
        assert await tokens.of("users", "gnomon-batch-token") == "new"


async def test_each_service_has_the_key_that_it_names(caplog: pytest.LogCaptureFixture) -> None:
    keys = {name: base64.b64encode(token).decode() for name, token in (("one", b"ones"), ("two", b"twos"))}
    script = Script([Answer({"kind": "Secret", "data": {"one": keys["one"]}}), Answer({"kind": "Secret", "data": keys})])
    with serving(script) as api:
        tokens = Tokens(api, Clock())
        assert await tokens.of("users", "one") == "ones"
        # It was added since: what is known of the other keys says nothing of this one.
        assert [await tokens.of("users", name) for name in ("two", "one", "three")] == ["twos", "ones", ""]
        assert len(script.asked) == 3
    assert "gnomon-batch-token has no key three" in caplog.text
