"""Calls from inside the gateway (asynchronous invocation) where there are several replicas: the owner's queue, wherever it is.

A stored call stays with the replica that has accepted it, which tries it and calls back; only the execution is the owner's. What
comes back is an answer in any case, so that the rules of trying again are the same as with one replica.
"""

from __future__ import annotations

import asyncio
import time

from gnomon_core.errors import GnomonError
from gnomon_core.ownership import Replica
from gnomon_gateway.asynchronous.invocation import FunctionAnswer, Invocation, Invoke, answer_of
from gnomon_gateway.dispatch.dispatcher import deadline_exceeded
from gnomon_gateway.functions.function_runtime import FunctionDirectory
from gnomon_gateway.invoke import DEADLINE_HEADER
from gnomon_gateway.replicas.assignment import Place
from gnomon_gateway.replicas.forwarding import EPOCH_HEADER
from gnomon_gateway.replicas.peers import PeerConnection
from gnomon_gateway.replicas.replica import ReplicaLife

PAUSE_S = 0.05
_MOVED = 421


class SharedInvoker:
    """An `Invoke` that asks `own` for what is ours, and the owner for everything else."""

    def __init__(self, own: Invoke, directory: FunctionDirectory, life: ReplicaLife) -> None:
        self._own, self._directory, self._life = own, directory, life

    async def __call__(self, invocation: Invocation) -> FunctionAnswer:
        runtime = self._directory.lookup(str(invocation.function))
        if runtime is None:
            return await self._own(invocation)
        allowed_s = min(runtime.settings.deadline_s, invocation.deadline_s or runtime.settings.deadline_s)
        end_s = time.monotonic() + allowed_s
        while (left_s := end_s - time.monotonic()) > 0:
            place = self._life.place(runtime.name)
            answer = None
            if place is Place.HERE:
                answer = await self._own(invocation)
            elif isinstance(place, Replica):
                answer = await self._ask(place, invocation, left_s)
            if answer is not None and not (answer.status == _MOVED and answer.is_ours):
                return answer
            self._life.look()
            await asyncio.sleep(PAUSE_S)
        return answer_of(deadline_exceeded(allowed_s))

    async def _ask(self, replica: Replica, invocation: Invocation, left_s: float) -> FunctionAnswer | None:
        """The owner's answer; None where it has certainly received nothing."""
        peers = self._life.forwarder.peers
        try:
            connection = peers.idle(replica.address) or await peers.open(replica.address)
        except (OSError, TimeoutError):
            return None
        waiting = _Waiting()
        try:
            async with asyncio.timeout(left_s):
                connection.send(self._head(invocation, left_s), invocation.body, waiting)
                return await waiting.answered
        except ConnectionResetError:
            return answer_of(GnomonError(502, "replica_lost", "The replica that executed the call ended before it answered."))
        except TimeoutError:
            return answer_of(deadline_exceeded(left_s))
        finally:
            _leave(connection, waiting)

    def _head(self, invocation: Invocation, left_s: float) -> bytes:
        query = f"?{invocation.query}" if invocation.query else ""
        lines = [f"{invocation.method} /function/{invocation.function}{invocation.path}{query} HTTP/1.1", "host: gnomon"]
        lines += [f"{name}: {value}" for name, value in invocation.headers if name.lower() != "host"]
        ours = b"%b: %d\r\n%b: %.3f\r\ncontent-length: %d\r\n\r\n"
        values = (EPOCH_HEADER, self._life.holdings.epoch, DEADLINE_HEADER, left_s * 1e3, len(invocation.body))
        text = "\r\n".join(lines).encode("latin-1", "replace")
        return text + b"\r\n" + self._life.forwarder.peers.secret.line + ours % values


def _leave(connection: PeerConnection, waiting: _Waiting) -> None:
    if not waiting.came:
        connection.drop()


class _Waiting:
    """The receiver of one call."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[FunctionAnswer] = asyncio.get_running_loop().create_future()
        self.came = False
        self._status, self._lines, self._parts = 0, b"", list[bytes]()

    def whole(self, status: int, lines: bytes, body: bytes) -> None:
        self.came = True
        named = (line.partition(":") for line in lines.decode("latin-1").split("\r\n") if line)
        if not self.answered.done():
            self.answered.set_result(FunctionAnswer(status, tuple((name, value.strip()) for name, _, value in named), body))

    def start(self, status: int, lines: bytes) -> None:
        self._status, self._lines = status, lines

    def part(self, data: bytes) -> None:
        self._parts.append(data)

    def end(self) -> None:
        self.whole(self._status, self._lines, b"".join(self._parts))

    def lost(self) -> None:
        self.came = True
        if not self.answered.done():
            self.answered.set_exception(ConnectionResetError("the replica has closed the connection"))
