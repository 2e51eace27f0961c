"""Callers that ask one thing after the other and look at each answer, until they are told to stop."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from tests.integration.serve.conftest import Serving
from tests.waiting import eventually

Ask = Callable[[int, int], str]
"""Asks for caller number … the thing number …, and says "ok" of a right answer, of any other what it was."""


def echoing(serving: Serving, name: str) -> Ask:
    """A token that must come back."""

    def ask(caller: int, number: int) -> str:
        token = f"{caller}-{number}".encode()
        answer = serving.call("POST", f"/function/{name}", token)
        return "ok" if (answer.status, answer.data) == (200, token) else f"{answer.status} {answer.data[:200]!r}"

    return ask


class Load:
    """Some callers, until `stop` or the end of a block. `answered` grows with every answer; `stop` says how many of each kind."""

    def __init__(self, ask: Ask, callers: int = 4) -> None:
        self._ask = ask
        self.answered = 0
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(callers)
        self._callers = [self._pool.submit(self._run, caller) for caller in range(callers)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _run(self, caller: int) -> Counter[str]:
        seen: Counter[str] = Counter()
        while not self._ended.is_set():
            seen[self._ask(caller, seen.total())] += 1
            self.answered += 1
        return seen

    def more(self, count: int) -> None:
        """Wait for so many more answers."""
        goal = self.answered + count
        eventually(lambda: self.answered >= goal, "too few answers to mean anything")

    def stop(self) -> Counter[str]:
        self._ended.set()
        total: Counter[str] = Counter()
        for caller in self._callers:
            total += caller.result()
        self._pool.shutdown()
        return total
