"""Calls that are answered later, joined: who makes them, by which rule again, and who is told of their end."""

from __future__ import annotations

from collections.abc import Callable
from random import SystemRandom

from gnomon_cli.commands.serve_options import ServeOptions
from gnomon_core.clock import Clock
from gnomon_core.functions import FunctionKey
from gnomon_gateway.asynchronous.callbacks import Callbacks
from gnomon_gateway.asynchronous.calls import CallStore
from gnomon_gateway.asynchronous.invocation import Invoke
from gnomon_gateway.asynchronous.queue import AsyncQueue
from gnomon_gateway.asynchronous.retries import RetryRule, read_retry_rule
from gnomon_gateway.asynchronous.targets import CallbackHosts
from gnomon_gateway.service import FunctionStatus

Status = Callable[[FunctionKey], FunctionStatus | None]
"""How a function is; None for one that is not deployed."""


def asynchronous(options: ServeOptions, invoke: Invoke, status: Status, clock: Clock) -> tuple[AsyncQueue, Callbacks]:
    """The queue of such calls, and the callbacks at their ends."""

    def retry_rule(key: FunctionKey) -> RetryRule:
        found = status(key)
        return read_retry_rule(found.spec.annotations) if found is not None else RetryRule()

    callbacks = Callbacks(CallbackHosts(options.callback_hosts), SystemRandom())
    calls = CallStore(options.state / "calls.db")
    return AsyncQueue(calls, invoke, callbacks, retry_rule, clock=clock, chance=SystemRandom()), callbacks
