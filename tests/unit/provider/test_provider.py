"""The platform of a foreign provider: batches whose members travel one by one, and numbers of replicas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.provider.api import ProviderOptions
from gnomon_platforms.provider.channel import Ask, ChannelContext, ProviderChannel, Route
from gnomon_platforms.provider.platform import ProviderPlatform
from tests.refusals import refused


class FailingRoute:
    """A route that answers requests until the one with the body `broken`, at which something unforeseen fails."""

    address = "http://provider/function/f"

    @asynccontextmanager
    async def answered(self, ask: Ask) -> AsyncIterator[Any]:
        if ask.body == b"broken":
            raise RuntimeError("no code has foreseen this")
        yield SimpleNamespace(status=200, headers={}, read=lambda: asyncio.sleep(0, ask.body))


async def result_of(*bodies: bytes) -> tuple[Frame | None, list[str]]:
    """The result of a batch of these requests, and why the channel was lost."""
    lost: list[str] = []
    context = ChannelContext(reachable=lambda: True, on_unreachable=lost.append, timeout_s=5.0)
    channel = ProviderChannel(cast("Route", FailingRoute()), context, "", lost.append)
    done: asyncio.Future[Frame | None] = asyncio.get_running_loop().create_future()
    members = [Member(0, 1, b"POST\n/\n", body) for body in bodies]
    channel.run(Frame(Kind.BATCH, 1, 1, 5.0, members=members), done.set_result)
    return await done, lost


async def test_unforeseen_error_keeps_the_answers_of_earlier_members() -> None:
    result, lost = await result_of(b"first", b"second", b"broken", b"never sent")
    assert result is not None, "the batch has a result for each of its members"
    assert [member.code for member in result.members] == [200, 200, 502, 502]
    assert [bytes(member.body) for member in result.members[:2]] == [b"first", b"second"]
    assert "RuntimeError: no code has foreseen this" in json.loads(bytes(result.members[2].body))["error"]["message"]
    assert lost == []


async def test_unforeseen_error_at_the_first_member_loses_the_instance() -> None:
    result, lost = await result_of(b"broken", b"never sent")
    assert result is None
    assert len(lost) == 1


KEY = FunctionKey("fn")
AWAY = GnomonError(503, "provider_unreachable", "It does not answer.")


def platform(scaled: list[int], *, refuses: GnomonError | None = None) -> ProviderPlatform:
    """A platform whose provider takes the number of replicas, or refuses it, and does not list its functions then."""

    def scale(key: FunctionKey, replicas: int) -> None:
        assert key == KEY
        if refuses is not None:
            raise refuses
        scaled.append(replicas)

    def refresh() -> None:
        raise AWAY

    api, catalog = SimpleNamespace(scale=scale), SimpleNamespace(refresh=refresh, unreachable=False)
    return ProviderPlatform(cast("Any", api), cast("Any", catalog), ProviderOptions("http://provider"))


async def test_number_that_the_provider_took_succeeds_although_it_cannot_be_polled_then() -> None:
    scaled: list[int] = []
    await platform(scaled).scale(KEY, 3)
    assert scaled == [3]


@pytest.mark.parametrize("refusal", [AWAY, GnomonError(404, "function_not_found", "There is none.")])
async def test_refusal_of_the_provider_is_reported(refusal: GnomonError) -> None:
    with refused(refusal.status, refusal.code):
        await platform([], refuses=refusal).scale(KEY, 3)
