"""Says what is being done, and when it is done, how long it took."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CANNOT_BE_HAD = 3
"""The status with which a command ends that cannot do here what it was asked for."""


class Trouble(Exception):  # noqa: N818 - it is shown as a sentence, not as the name of a class
    """The reason that keeps a cluster from running, in words for whoever asked for it."""


class CannotBeHad(Trouble):
    """The machine lacks something: reason enough to skip tests, and none to say that all is well."""


@dataclass
class Phases:
    """The seconds of each phase, in order. Prints as it goes, unless told to be silent."""

    silent: bool = False
    took_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Run a phase, and print a line with its duration when it has succeeded."""
        begun_s = time.monotonic()
        yield
        self.took_s[name] = time.monotonic() - begun_s
        self.say(f"{self.took_s[name]:7.1f} s  {name}")

    @contextmanager
    def alone(self, lock: Path, what: str) -> Iterator[None]:
        """While nobody else does this; whoever is second waits, and is told for what."""
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.say(f"           waiting for another command that {what}")
                fcntl.flock(held, fcntl.LOCK_EX)
            yield

    def total(self, what: str) -> None:
        """The last line."""
        self.say(f"{sum(self.took_s.values()):7.1f} s  {what}")

    def say(self, line: str) -> None:
        """A line for whoever waits."""
        if not self.silent:
            print(line, flush=True)
