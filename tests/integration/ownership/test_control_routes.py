"""Control routes that a replica forwards to the leader have the same access rules as those of a lone gateway."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from gnomon_core.clock import WallClock
from gnomon_gateway.api.access import FROM_PEER, BasicAuth
from gnomon_gateway.replicas.assigner import Assigner
from tests.integration.gateway.conftest import Response
from tests.integration.ownership.conftest import SECRET, Replica, until
from tests.ownership_boards import MemoryBoard

SHOWN = SECRET.line.decode().strip().partition(": ")[2]
LOGIN = {"Authorization": "Basic " + base64.b64encode(b"admin:right").decode()}
WRONG = {"Authorization": "Basic " + base64.b64encode(b"admin:wrong").decode()}
CONTROL = ["/system/functions", "/system/logs?name=f&follow=true", "/system/secrets", "/gnomon/functions/f", "/nowhere"]
ANOTHER_UID = 64_777
AS_ANOTHER = """
import encodings.idna, http.client, os
os.setgroups([])
os.setresgid(*[{uid}] * 3)
os.setresuid(*[{uid}] * 3)
connection = http.client.HTTPConnection("127.0.0.1", {port}, timeout=60)
connection.request("GET", "/system/functions", headers={headers!r})
print(connection.getresponse().status)
"""


@dataclass
class Two:
    """Two replicas: a leader, and one that forwards to it."""

    leader: Replica
    follower: Replica

    @property
    def both(self) -> tuple[Replica, Replica]:
        return self.leader, self.follower


@contextlib.asynccontextmanager
async def running(auth: BasicAuth | None) -> AsyncIterator[Two]:
    board = MemoryBoard()
    two = Two(Replica("leader", board, auth), Replica("follower", board, auth, leads=lambda: False))
    for replica in two.both:
        await replica.shared.start()
        await replica.server.start()
        board.listening.add(replica.shared.address)
    agent = two.leader.shared.agent
    assigner = Assigner(board, two.leader.shared.peers, WallClock(), leads=lambda: True, poll_s=0.02, agent=agent)
    leading = asyncio.get_running_loop().create_task(assigner.run())
    await until(lambda: two.follower.shared.agent.known_leader() is not None)
    yield two
    leading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await leading
    for replica in two.both:
        for connection in replica.connections:
            connection.close()
        await replica.server.stop()
    for replica in two.both:
        await replica.shared.stop()


@pytest.fixture
async def two() -> AsyncIterator[Two]:
    async with running(None) as two:
        yield two


@pytest.fixture
async def with_login() -> AsyncIterator[Two]:
    async with running(BasicAuth("admin", "right")) as two:
        yield two


async def ask(replica: Replica, path: str, headers: dict[str, str] | None = None) -> Response:
    return await replica.call(path, b" of mine", "POST", headers)


def refusal(response: Response) -> tuple[int, str]:
    return response.status, json.loads(response.body)["error"]["code"]


@pytest.mark.parametrize("path", CONTROL)
async def test_the_gateways_user_needs_no_login_at_any_replica(two: Two, path: str) -> None:
    for replica in two.both:
        response = await ask(replica, path)
        assert (response.status, response.body) == (200, b"control of mine")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has other users' processes")
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Gnomon-Peer": SHOWN, "X-Gnomon-Peer-Client": "127.0.0.1"},  # on the public listener the secret opens nothing
        {FROM_PEER: "True", "X-Gnomon-From-Peer": "True"},
    ],
)
async def test_another_user_is_refused_at_any_replica(two: Two, headers: dict[str, str]) -> None:
    for replica in two.both:
        program = AS_ANOTHER.format(uid=ANOTHER_UID, port=replica.server.port, headers=headers)
        process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", program, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        assert output.strip() == b"403"


@pytest.mark.parametrize("path", CONTROL)
async def test_a_proxy_is_refused_at_any_replica(two: Two, path: str) -> None:
    for replica in two.both:
        headers = {"X-Forwarded-For": "192.0.2.1", "X-Gnomon-Peer": SHOWN}
        assert refusal(await ask(replica, path, headers)) == (403, "proxy_refused")


async def test_a_foreign_page_is_refused_at_any_replica(two: Two) -> None:
    for replica in two.both:
        assert refusal(await ask(replica, "/system/functions", {"Origin": "http://elsewhere.example"})) == (403, "foreign_origin")


async def test_refused_control_request_is_not_forwarded_without_a_leader(two: Two) -> None:
    two.follower.shared.agent.known_leader = lambda: None  # type: ignore[method-assign]
    assert refusal(await ask(two.follower, "/system/functions", {"Via": "1.1 proxy"})) == (403, "proxy_refused")


async def test_asynchronous_calls_and_health_are_answered_where_they_arrive(two: Two) -> None:
    for path in ("/healthz", "/metrics", "/async-function/f"):
        method = "POST" if path.startswith("/async") else "GET"
        response = await two.follower.call(path, b"", method, {"X-Forwarded-For": "192.0.2.1"})
        assert response.status == 200


@pytest.mark.parametrize("path", CONTROL)
async def test_with_a_login_it_is_needed_at_any_replica(with_login: Two, path: str) -> None:
    for replica in with_login.both:
        for headers in ({}, WRONG, {"X-Gnomon-Peer": SHOWN}):
            assert (await ask(replica, path, headers)).status == 401
        response = await ask(replica, path, {**LOGIN, "X-Forwarded-For": "192.0.2.1"})
        assert (response.status, response.body) == (200, b"control of mine")


async def inside(replica: Replica, headers: dict[str, str]) -> Response:
    connection = await replica.connect(inside=True)
    return await connection.call("/system/functions", b"", "GET", headers)


async def test_leader_trusts_only_the_secret_and_checks_credentials(two: Two, with_login: Two) -> None:
    for shown in ({}, {"X-Gnomon-Peer": "guessed-by-somebody"}, {FROM_PEER: "True"}):
        assert refusal(await inside(two.leader, shown)) == (401, "peer_unknown")
    assert (await inside(two.leader, {"X-Gnomon-Peer": SHOWN})).status == 200
    for login, status in (({}, 401), (WRONG, 401), (LOGIN, 200)):
        assert (await inside(with_login.leader, {"X-Gnomon-Peer": SHOWN, **login})).status == status
