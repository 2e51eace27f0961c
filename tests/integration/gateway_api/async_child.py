"""A process with an asynchronous queue: `async_child.py FOLDER CALLBACK_PORT COUNT`.

It takes up what is on disk, submits COUNT calls of its own, says `accepted ID` for each once it is stored, and writes `ran ID` to
the journal whenever the function has run. It is killed at any moment.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random

from gnomon_core.clock import WallClock
from gnomon_core.functions import FunctionKey
from gnomon_gateway.asynchronous.callbacks import CallbackHosts, Callbacks
from gnomon_gateway.asynchronous.calls import Call, CallStore, FunctionAnswer, Invocation
from gnomon_gateway.asynchronous.queue import AsyncQueue, RetryRule


async def main(folder: Path, port: int, count: int) -> None:
    journal = (folder / "journal").open("a", buffering=1)
    rng = Random()

    async def invoke(invocation: Invocation) -> FunctionAnswer:
        call_id = dict(invocation.headers)["x-call-id"]
        assert invocation.body == call_id.encode() * 100
        await asyncio.sleep(rng.uniform(0.0, 0.01))
        journal.write(f"ran {call_id}\n")
        return FunctionAnswer(200, (), invocation.body)

    hosts = CallbackHosts([f"127.0.0.1:{port}"])
    queue = AsyncQueue(
        CallStore(folder / "calls.db"), invoke, Callbacks(hosts, rng), lambda _: RetryRule(), clock=WallClock(), rng=rng
    )
    await queue.start()

    async def submit(number: int) -> None:
        call_id = f"{folder.name}-{rng.randrange(10**9)}-{number}"
        url = f"http://127.0.0.1:{port}/" if number % 2 else ""
        body = call_id.encode() * 100
        call = Call(call_id, FunctionKey("fn"), "/", "", (("x-call-id", call_id),), len(body), url, 0.0)
        await queue.submit(call, body)
        sys.stdout.write(f"accepted {call_id}\n")
        sys.stdout.flush()

    await asyncio.gather(*(submit(number) for number in range(count)))
    while queue.counters.waiting:  # noqa: ASYNC110 - nobody else needs to know when the queue is empty
        await asyncio.sleep(0.005)
    sys.stdout.write("empty\n")
    await queue.stop()


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
