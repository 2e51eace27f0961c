"""The processes below the platform that are no instances: the supervisor, the zygotes, and the word of the coordinator.

    start ▶ supervisor's hello ▶ up: zygotes warm, instances are born and end ▶ lost ▶ pause ▶ start …

A supervisor that ends takes everything below it along. It is replaced until there is one again or the platform stops; what is
asked for meanwhile waits here, because what is said to no supervisor would be lost. A zygote that ends is replaced when an
instance needs it next; the one with torch by itself, because Shadows are forked from it and importing torch takes seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon_core.clock import Clock
from gnomon_core.errors import GnomonError, bad_request
from gnomon_platforms.local.supervisor_client import SupervisorClient
from gnomon_platforms.local.zygotes import TORCH, WARM_TIMEOUT_S, Environment, Zygotes

HELLO_TIMEOUT_S = 10.0
RESTART_PAUSE_S = 0.5
"""Before another supervisor where one has ended within this time of its hello; one that was killed later is replaced at once."""
WARMINGS = 3
"""How many zygotes that end before they are warm are waited for: one may be killed, one that dies of its imports always does."""
TORCH_PAUSE_S = 5.0
"""Importing torch takes seconds of a core: a zygote that ends each time must not take all of one."""
TORCH_STEADY_S = 1.0
"""One that ends later than this after it was warm is replaced without a pause: something from outside has ended it."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ears:
    """Who wants to know: of instances that were born or have ended, and of the end of everything.

    `torch_wanted` is called before the zygote with torch is used, `torch_warm` once it can fork.
    """

    instance: Callable[[dict[str, Any]], None]
    torch_wanted: Callable[[], None]
    torch_warm: Callable[[], None]
    lost: Callable[[], None]


class Supervision:
    """Keeps a supervisor running, with the zygotes `at_start`. `no_isolation` says why functions are not kept apart, if so."""

    def __init__(self, at_start: Sequence[Environment], clock: Clock) -> None:
        self.zygotes = Zygotes(self.send)
        self.no_isolation: str | None = None
        self._at_start = tuple(at_start)
        self._clock = clock
        self._ears: Ears | None = None
        self._client: SupervisorClient | None = None
        self._hello: asyncio.Future[str | None] | None = None
        self._up = asyncio.Event()
        """There is a supervisor that can be told something."""
        self._up_since_s = float("-inf")
        self._torch_warm_s = float("inf")
        self._restarting: asyncio.Task[None] | None = None
        self._beginning_torch: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int:
        """The process below which everything else is."""
        assert self._client is not None, "the platform has not been started"
        return self._client.pid

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        """Tell the supervisor something. The descriptors are its to close."""
        assert self._client is not None, "the platform has not been started"
        self._client.send(message, descriptors or [])

    def check_isolation(self) -> None:
        """Raise where functions cannot be kept apart: GnomonError, 400 `secrets_unavailable`."""
        if self.no_isolation is not None:
            raise bad_request(
                "secrets_unavailable",
                f"This machine does not let us mount secrets for one function alone ({self.no_isolation}).",
                "Start Gnomon as root, or allow unprivileged user namespaces, or deploy the function without secrets.",
            )

    async def start(self, ears: Ears) -> None:
        """Return when there is a supervisor; its zygotes warm up behind this.

        Raises:
            GnomonError: 500 `supervisor_failed`.

        """
        self._ears = ears
        await self._start()

    async def _start(self) -> None:
        self._hello = asyncio.get_running_loop().create_future()
        client = self._client = SupervisorClient(self._heard, self._lost)
        try:
            self.no_isolation = await asyncio.wait_for(self._hello, HELLO_TIMEOUT_S)
        except TimeoutError:
            await client.stop()
            raise _failed() from None
        if client.gone:
            # It said hello and ended before this was resumed.
            raise _failed()
        if self.no_isolation is not None:
            _LOG.warning("functions are not isolated from each other, and secrets are refused: %s", self.no_isolation)
        for environment in self._at_start:
            self.zygotes.begin(environment)
        if TORCH in self._at_start and self._ears is not None:
            self._ears.torch_wanted()
        self._up.set()
        self._up_since_s = self._clock.now_s()

    def give_up(self) -> None:
        """Start no other supervisor from now on: this one is about to be stopped."""
        self._stopping = True
        for task in (self._restarting, self._beginning_torch):
            if task is not None:
                task.cancel()

    async def stop(self) -> None:
        """End the supervisor and with it all that is left below it."""
        self.give_up()
        if self._client is not None:
            await self._client.stop()
        self.zygotes.lost("the platform has stopped")

    async def warm(self, environment: Environment) -> None:
        """Return when instances can be forked in this environment.

        Raises:
            GnomonError: 500 `environment_failed` or `supervisor_failed`.

        """
        try:
            await asyncio.wait_for(self._up.wait(), HELLO_TIMEOUT_S)
        except TimeoutError:
            raise _failed() from None
        if environment is TORCH and self._ears is not None:
            self._ears.torch_wanted()
        await self.zygotes.warm(environment)

    async def warm_again(self, environment: Environment) -> None:
        """The same, also where zygotes or the supervisor end meanwhile.

        Raises:
            GnomonError: 500 `environment_failed` or `supervisor_failed`, that of the last attempt.

        """
        give_up_s = self._clock.now_s() + WARM_TIMEOUT_S
        failed = 0
        while True:
            supervisor = self._client
            try:
                await self.warm(environment)
            except GnomonError:
                # What a supervisor takes along says nothing about the environment.
                failed += self._client is supervisor and self._up.is_set()
                if failed >= WARMINGS or self._stopping or self._clock.now_s() >= give_up_s:
                    raise
            else:
                return

    def _heard(self, event: dict[str, Any]) -> None:
        kind, ears = event["event"], self._ears
        assert ears is not None
        if kind == "hello":
            if self._hello is not None and not self._hello.done():
                self._hello.set_result(event["isolation"])
        elif kind == "warm":
            for problem in self.zygotes.told_warm(event):
                _LOG.warning("the zygote %s could not import %s", event["zygote"], problem)
            if event["zygote"] == TORCH.id:
                self._torch_warm_s = self._clock.now_s()
                ears.torch_warm()
        elif kind == "zygote_gone":
            self.zygotes.told_gone(event)
            if event["zygote"] == TORCH.id:
                self._begin_torch_again()
        elif kind == "coordinator":
            _LOG.info("the coordinator of epoch %s has begun as process %s", event["epoch"], event["pid"])
        elif kind == "coordinator_gone":
            _LOG.error("the coordinator of epoch %s has ended; Bodies and pairs go on, and there will be another", event["epoch"])
        else:
            ears.instance(event)

    def _begin_torch_again(self) -> None:
        steady = self._clock.now_s() - self._torch_warm_s > TORCH_STEADY_S
        self._torch_warm_s = float("inf")

        async def begin() -> None:
            await self._clock.sleep(0.0 if steady else TORCH_PAUSE_S)
            if self._up.is_set():
                self.zygotes.begin(TORCH)

        if not self._stopping and (self._beginning_torch is None or self._beginning_torch.done()):
            self._beginning_torch = asyncio.get_running_loop().create_task(begin())

    def _lost(self) -> None:
        """The supervisor has ended, and everything below it with it. Report that and start another."""
        self._up.clear()
        if self._hello is not None and not self._hello.done():
            # It is being waited for: whoever does that starts another, or gives up.
            self._hello.set_exception(_failed())
        elif not self._stopping and (self._restarting is None or self._restarting.done()):
            _LOG.error("the supervisor has ended; starting another")
            self._restarting = asyncio.get_running_loop().create_task(self._restart())
        self.zygotes.lost("the supervisor has ended")
        assert self._ears is not None
        self._ears.lost()

    async def _restart(self) -> None:
        if self._clock.now_s() - self._up_since_s < RESTART_PAUSE_S:
            await self._clock.sleep(RESTART_PAUSE_S)
        while not self._up.is_set():
            try:
                await self._start()
            except (GnomonError, OSError) as error:
                _LOG.error("%s", error)
                await self._clock.sleep(RESTART_PAUSE_S)


def _failed() -> GnomonError:
    return GnomonError(500, "supervisor_failed", "The supervisor did not start.", "See the output above.")
