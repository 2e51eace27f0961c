"""What was measured of one Revision's model, by which its policy decides: read beside the event loop, now and then anew.

    settings name a model ▶ it is read in a thread ▶ known ▶ half a minute ▶ read again ─ another profile ─▶ `changed`

A repository may be far away, and not answer for minutes: no other Revision waits for that. Until a model's profile is known its
policy is not asked at all: without one it would end the Shadows that an earlier leader has left. That wait has an end, after
which it is asked as it is where nobody has measured the model.

A few threads read for all Revisions, and for nothing else. A repository that answers nothing holds these, for as long as each of
its reads may take; whoever waits behind them decides by what was read last.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gnomon_core.clock import Clock
from gnomon_core.profiles import REREAD_S, ModelProfile
from gnomon_core.settings import Settings

PATIENCE_S = 10.0
"""For the first answer of a repository. One that is well takes less than a second."""
READERS = 4
"""As many models are read at once."""
_READERS = ThreadPoolExecutor(READERS, "models")

_LOG = logging.getLogger("gnomon.knative")


class Measured:
    """The profile of the model that a Revision's settings name. `read` may block; `changed` is called when there is news."""

    def __init__(self, read: Callable[[Settings], ModelProfile | None], clock: Clock, changed: Callable[[], None]) -> None:
        self.profile: ModelProfile | None = None
        self._read, self._clock, self._changed = read, clock, changed
        self._settings: Settings | None = None
        """Those that name the model; None while none is named."""
        self._waits_until_s = -math.inf
        """For the first answer."""
        self._again_s = math.inf
        self._reading: asyncio.Task[None] | None = None

    @property
    def known(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._clock.now_s() >= self._waits_until_s

    def follow(self, settings: Settings) -> None:
        """Go by the model that these settings name from now on."""
        before = None if self._settings is None else self._settings.model
        if settings.model != before:
            self.close()
            now_s = self._clock.now_s()
            self.profile, self._settings = None, None if settings.model is None else settings
            self._again_s, self._waits_until_s = (math.inf, -math.inf) if settings.model is None else (now_s, now_s + PATIENCE_S)
        self.look()

    def look(self) -> None:
        """Read it, if that is due and is not under way."""
        if self._settings is not None and self._reading is None and self._clock.now_s() >= self._again_s:
            self._reading = asyncio.get_running_loop().create_task(self._read_once(self._settings))

    def close(self) -> None:
        """Whatever is read is not wanted any more."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    async def _read_once(self, settings: Settings) -> None:
        first, profile = not self.known, self.profile
        try:
            profile = await asyncio.get_running_loop().run_in_executor(_READERS, self._read, settings)
        except Exception:  # noqa: BLE001 - the last one holds, and it is read again
            _LOG.exception("what was measured of %s cannot be read", settings.model)
        self._reading, self._again_s, self._waits_until_s = None, self._clock.now_s() + REREAD_S, -math.inf
        if first or profile != self.profile:
            # Whatever was worked out from the one before holds for one that is equal.
            self.profile = profile
            self._changed()
