"""The batch channel to Lambda: a batch is one Invoke, in a thread beside the event loop.

    run ▶ Invoke ─┬─ answered ▶ done(RESULT)
                  ├─ throttled ▶ a pause with full jitter ▶ Invoke again, until the batch's time is over ▶ 503 for each member
                  ├─ too large ▶ 413 for each member
                  └─ lost, refused, timed out ▶ done(None), and the channel has ended

The socket waits as long as the batch may, and two seconds for the way: Lambda ends a function that overran by itself, and then
says so. Nothing can stop an Invoke: one that is cancelled runs to its end, and its answer is dropped.
A streamed answer arrives in one piece when the function has ended, and is delivered part by part.

A probe asks Lambda whether it would take an Invoke, at most once a minute, and runs nothing, because AWS monitors the sandboxes.

One instance from its order to its end: a slot, the right to have one Invoke in flight.

    create ▶ version published ▶ HELLO: a sandbox has begun ▶ ready ▶ batch after batch ▶ destroyed, or its sandbox was lost

Lambda has as many sandboxes as are asked for, and an idle slot costs nothing: what is bounded is how many there are.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import PlatformListener
from gnomon_core.units import MEGABYTE
from gnomon_core.wire import Frame, FrameReader, Kind, WireError, encode, error_result
from gnomon_platforms.aws_lambda.invocation import InvokeOutcome, Invoker, LogTail, OutcomeKind, Target
from gnomon_platforms.aws_lambda.recipes import Recipe
from gnomon_platforms.aws_lambda.s3_transfer import ReplyKeys, S3Transfer
from gnomon_platforms.channel import Batch, ExchangeChannel, Outcome, State
from gnomon_platforms.common import RemoteInstance

GRACE_S = 2.0
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
PROBE_INTERVAL_S = 60.0
PARTS_A_TURN = 64
"""Parts of a stream that are delivered before the coroutine yields to the event loop."""


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """Dependencies that channels share: the invoker and its threads, the bucket, clock, random numbers, and clean-up.

    `remove` deletes keys of S3 in the background.
    """

    invoker: Invoker
    transfer: S3Transfer
    threads: Executor
    clock: Clock
    rng: random.Random
    remove: Callable[[Sequence[str]], None]


class LambdaChannel(ExchangeChannel):
    """A channel to a published version; `target` may be replaced between batches. See `gnomon_core.interfaces.BatchChannel`.

    `timeout_s` bounds batches that have no deadline. `on_tail` gets what each Invoke wrote and took, `on_lost` why the channel
    has ended; once.
    """

    def __init__(
        self,
        name: str,
        target: Target,
        timeout_s: float,
        context: ChannelContext,
        *,
        on_tail: Callable[[LogTail], None],
        on_lost: Callable[[str], None],
    ) -> None:
        super().__init__(on_lost, timeout_s, target.function, state=State.CONNECTING)
        self.target = target
        self._reply_keys = ReplyKeys(context.transfer, name, context.clock)
        self._context = context
        self._on_tail = on_tail
        self._probed: tuple[bool, float] | None = None

    async def probe(self, timeout_s: float) -> bool:
        """True if Lambda would take an Invoke."""
        now_s = self._context.clock.now_s()
        if self.closed:
            return False
        if self._probed is not None and now_s < self._probed[1] + PROBE_INTERVAL_S:
            return self._probed[0]
        invoked = self._loop.run_in_executor(self._context.threads, self._context.invoker.reachable, self.target)
        reachable = await invoked if (await asyncio.wait({invoked}, timeout=timeout_s))[0] else False
        self._probed = (reachable, now_s)
        return reachable

    async def hello(self, timeout_s: float) -> None:
        """Start a sandbox with an Invoke, and return when it can answer.

        Raises:
            GnomonError: 503 `function_failed`, with the function's output.

        """
        outcome = await self._attempts(Frame(Kind.HELLO, budget_s=timeout_s), timeout_s)
        if outcome.kind is not OutcomeKind.ANSWERED or not outcome.frames:
            log_tail = " | ".join(outcome.tail.lines[-5:])
            raise GnomonError(503, "function_failed", f"{outcome.reason}{f'; its log ends: {log_tail}' if log_tail else ''}")
        self._connected()

    async def _exchange(self, batch: Batch, frame: Frame) -> Outcome:
        outcome = await self._attempts(frame, self._allowed_s(frame), batch)
        if outcome.kind is OutcomeKind.ANSWERED:
            try:
                return await self._answer(batch, list(FrameReader().feed(outcome.frames)))
            except WireError as error:
                return Outcome(None, f"the function sent an invalid result: {error}")
        if outcome.kind is OutcomeKind.THROTTLED:
            return Outcome(error_result(frame, throttled(outcome.reason)))
        if outcome.kind is OutcomeKind.TOO_LARGE:
            return Outcome(error_result(frame, too_large(outcome.reason)))
        return Outcome(None, outcome.reason, unread=outcome.kind is OutcomeKind.REFUSED)

    async def _attempts(self, frame: Frame, budget_s: float, batch: Batch | None = None) -> InvokeOutcome:
        """Invoke, and retry while Lambda throttles and a client waits."""
        clock, rng = self._context.clock, self._context.rng
        until_s, longest_s = clock.now_s() + budget_s, FIRST_PAUSE_S
        while True:
            left_s = until_s - clock.now_s()
            outcome = await self._attempt(replace(frame, budget_s=max(0.0, left_s) if frame.budget_s else 0.0), left_s)
            pause_s = rng.uniform(0.0, longest_s)
            unwanted = batch is not None and batch.cancelled
            if outcome.kind is not OutcomeKind.THROTTLED or unwanted or clock.now_s() + pause_s >= until_s:
                return outcome
            longest_s = min(2 * longest_s, LONGEST_PAUSE_S)
            await clock.sleep(pause_s)

    async def _attempt(self, frame: Frame, left_s: float) -> InvokeOutcome:
        wait_s = max(left_s, 1.0) + GRACE_S
        invoked = self._loop.run_in_executor(self._context.threads, self._invoke, frame, wait_s)
        finished, _ = await asyncio.wait({invoked}, timeout=wait_s)
        if not finished:
            # The socket blocks the thread, for at most as long again; the late answer is dropped.
            invoked.add_done_callback(lambda late: None if late.cancelled() else self._account(late.result()))
            return InvokeOutcome(OutcomeKind.LOST, reason=f"no answer within {wait_s:.1f} s")
        outcome = await invoked
        self._account(outcome)
        return outcome

    def _invoke(self, frame: Frame, wait_s: float) -> InvokeOutcome:
        """Send the frame by one Invoke and return the outcome. Blocks; called in a thread."""
        return self._context.invoker.invoke(self.target, encode(frame), self._reply_keys, wait_s)

    def _account(self, outcome: InvokeOutcome) -> None:
        self._on_tail(outcome.tail)
        if outcome.stale_keys:
            self._context.remove(outcome.stale_keys)

    @staticmethod
    async def _answer(batch: Batch, frames: Sequence[Frame]) -> Outcome:
        """Deliver the answer: a result, or the parts of a stream, for as long as a client waits for them."""
        for number, part in enumerate(frames, 1):
            if batch.take(part) is not (number == len(frames)):
                raise WireError("an answer that ends too early, or not at all")
            if batch.cancelled and batch.stream is not None:
                return Outcome(batch.cancelled_result())
            if number % PARTS_A_TURN == 0:
                await asyncio.sleep(0)
        if not frames:
            raise WireError("no answer")
        return Outcome(batch.result)


def throttled(reason: str) -> GnomonError:
    """The error for a batch that Lambda did not start."""
    text = f"Lambda did not begin this batch in its time: {reason}"
    hint = "Ask AWS for more concurrent executions, or allow longer deadlines."
    return GnomonError(503, "lambda_throttled", text, hint, retry_after_s=LONGEST_PAUSE_S)


def too_large(subject: str) -> GnomonError:
    """The error for a batch or result that exceeds Lambda's size limits."""
    text = f"{subject[:1].upper()}{subject[1:]} is more than an Invoke takes."
    return GnomonError(413, "payload_too_large", text, "Start Gnomon with --lambda-bucket NAME, or send less at once.")


class Slot(RemoteInstance[LambdaChannel]):
    """An instance: a slot of this function. Its channel is set from its HELLO on."""

    def __init__(
        self,
        instance: Instance,
        key: FunctionKey,
        recipe: Recipe,
        remote: str,
        *,
        listener: PlatformListener,
        ended: Callable[[Slot], None],
    ) -> None:
        super().__init__(instance, listener, ended)
        self.key = key
        self.recipe = recipe
        self.remote = remote
        """The function's name on Lambda."""
        self.used_mb = 0
        """Peak memory of one of its sandboxes in MB."""

    def resized(self, cores: int, memory_mb: int) -> None:
        """Switch its batches to another version."""
        self.instance = replace(self.instance, cores=cores, memory_bytes=memory_mb * MEGABYTE, memory_mb=None)

    def log(self, line: str) -> None:
        """A line that the function wrote."""
        self._listener.log_line(self.key, self.instance.id, line)
