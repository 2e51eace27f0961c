"""The coordinator of one node, as the platform reaches it: its whole state as it changes, and wishes for Shadows.

    GET /v1/state, which waits for news ▶ on_state(state) ▶ again; a node that does not answer is asked again after a while

The connection is HTTP with a token (`gnomon_coordinator.node.api` has the routes). Each question says our epoch, so that the
node obeys nobody before us from the first one on. Whoever is at the other end may be restarted at any time: `incarnation` says
so, and the state is always all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gnomon_core.coordination import NODES_NAMESPACE
from gnomon_core.errors import GnomonError

if TYPE_CHECKING:
    import aiohttp

WAIT_S = 30
RETRY_S = 1.0
WISH_TIMEOUT_S = 5.0
OK = 200
UNREACHABLE = "node_unreachable"
State = Mapping[str, Any]

_LOG = logging.getLogger("gnomon.nodes")


class NodeClient:
    """One node's coordinator at an address. `on_state` gets each state that is news; `on_lost` that it does not answer.

    `epoch` is the leader's, who asks.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        address: str,
        token: str,
        *,
        epoch: Callable[[], int],
        on_state: Callable[[State], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.address = address
        self._session = session
        self._headers = {"Authorization": f"Bearer {token}"}
        self._epoch = epoch
        self._on_state = on_state
        self._on_lost = on_lost
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Hear no more of it."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def wish(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Say what is wanted, and return the answer.

        Raises:
            GnomonError: what the node answers; 503 `node_unreachable` where it does not.

        """
        import aiohttp  # noqa: PLC0415 - only who has instances elsewhere needs it

        timeout = aiohttp.ClientTimeout(total=WISH_TIMEOUT_S)
        try:
            async with self._session.request(
                method, self.address + path, json=document, headers=self._headers, timeout=timeout
            ) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = f"The coordinator at {self.address} does not answer: {type(error).__name__} {error}."
            raise GnomonError(503, UNREACHABLE, why, f"kubectl logs -n {NODES_NAMESPACE} daemonset/coordinator") from error
        if answer.status != OK:
            raise _refusal(answer.status, text)
        heard: dict[str, Any] = json.loads(text)
        return heard

    async def _watch(self) -> None:
        import aiohttp  # noqa: PLC0415 - as above

        incarnation, version = "", 0
        timeout = aiohttp.ClientTimeout(total=2 * WAIT_S)
        while True:
            seen = f"incarnation={incarnation}&version={version}&wait_s={WAIT_S}"
            url = f"{self.address}/v1/state?{seen}&epoch={self._epoch()}"
            try:
                async with self._session.get(url, headers=self._headers, timeout=timeout) as answer:
                    text = await answer.text()
                if answer.status != OK:
                    raise _refusal(answer.status, text)
                state = json.loads(text)
                news = (str(state["incarnation"]), int(state["version"]))
                if news != (incarnation, version):
                    self._on_state(state)
                    incarnation, version = news
            except (aiohttp.ClientError, OSError, GnomonError, ValueError, KeyError, TypeError, OverflowError) as error:
                _LOG.warning("the coordinator at %s: %s: %s", self.address, type(error).__name__, error)
                self._on_lost()
                # Whoever has lost sight of it wants its state, be it news or not.
                incarnation, version = "", 0
                await asyncio.sleep(RETRY_S)


def _refusal(status: int, text: str) -> GnomonError:
    try:
        document = json.loads(text)["error"]
        return GnomonError(status, str(document["code"]), str(document["message"]), str(document.get("hint", "")))
    except (ValueError, KeyError, TypeError):
        return GnomonError(status, "node_refuses", text[:200] or f"It answers {status}.")
