"""A batch to a function behind a foreign provider whose members travel one by one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.provider.channel import Ask, ChannelContext, ProviderChannel, Route


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
