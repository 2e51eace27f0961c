"""Instances that ended although nobody asked: replace the first at once, but do not start a broken one over and over.

An instance that ends before it was ready for 10 s is a failed start, and so is one that was made but has gone before anybody
looked. After the second time in a row, new instances wait 1 s, then 2, 4, … at most 60 s. An instance that stays ready for 10 s
ends the row. Several that fail at once are one time.

So does the end of one that had answered (`forgive`): it had started well, what ended it may have been a request, and whoever
sends such requests must not be able to keep the function away from everybody else.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnomon_core.fleet import Instance, InstanceState

STEADY_S = 10.0
LONGEST_WAIT_S = 60.0


class Starts:
    """What is known of a function's instances that came and went."""

    def __init__(self) -> None:
        self.failed = 0
        self.wait_until_s = float("-inf")
        self._seen: dict[str, Instance] = {}
        self._ready_at_s: dict[str, float] = {}
        self._dismissed: set[str] = set()
        self._expected = self._appeared = 0
        self.steady = False
        """Whether another look at the same instances would say nothing: nothing is expected, and all are ready and steady."""

    @property
    def row(self) -> str:
        """What to tell people about the row of failed starts; the same text for as long as the row is."""
        return f"{self.failed} starts failed in a row: new instances wait {self._wait_s:g} s; the function's log says why"

    @property
    def _wait_s(self) -> float:
        return min(LONGEST_WAIT_S, 2.0 ** (self.failed - 2)) if self.failed > 1 else 0.0

    @property
    def seen(self) -> tuple[Instance, ...]:
        """What was there at the last look."""
        return tuple(self._seen.values())

    def begin(self) -> None:
        """Something is about to be made. It may take a while, and be looked at before all of it was made."""
        self._appeared = 0

    def expect(self, instances: int) -> None:
        """So many were made since `begin`: at the next look each must have been there at one."""
        self.steady = self.steady and not instances
        self._expected += instances

    def dismiss(self, ids: Iterable[str]) -> None:
        """These end because a decision says so."""
        self._dismissed.update(ids)
        self.steady = self.steady and not self._dismissed

    def look(self, now_s: float, instances: tuple[Instance, ...]) -> None:
        """Compare what is there with what was there. `instances` are those of the newest version."""
        if not (instances or self._seen or self._expected):
            self._dismissed.clear()
            self.steady = True
            return  # as nearly every function is, of Shadows
        present = {instance.id: instance for instance in instances if instance.state is not InstanceState.GONE}
        version = max((instance.version for instance in present.values()), default=None)
        self._appeared += len(present.keys() - self._seen.keys())
        failed = self._appeared < self._expected
        self._expected = 0
        for id_, before in self._seen.items():
            replaced = version is not None and before.version < version
            asked = id_ in self._dismissed or before.state is InstanceState.DRAINING
            if id_ not in present and not asked and not replaced:
                failed |= not self._was_steady(now_s, id_)
        if failed:
            self._fail(now_s)
        for id_, instance in present.items():
            if instance.state is InstanceState.READY:
                self._ready_at_s.setdefault(id_, now_s)
                if self._was_steady(now_s, id_):
                    self.forgive()
        self._dismissed &= present.keys()
        self._ready_at_s = {id_: at_s for id_, at_s in self._ready_at_s.items() if id_ in present}
        self._seen = present
        ready = all(one.state is InstanceState.READY and self._was_steady(now_s, one.id) for one in instances)
        self.steady = ready and not self._dismissed

    def forgive(self) -> None:
        """Start anew: an instance is steady or has served, or the function was deployed again."""
        self.failed = 0
        self.wait_until_s = float("-inf")

    def _was_steady(self, now_s: float, id_: str) -> bool:
        since_s = self._ready_at_s.get(id_)
        return since_s is not None and now_s - since_s >= STEADY_S

    def _fail(self, now_s: float) -> None:
        self.failed += 1
        if self.failed > 1:
            self.wait_until_s = now_s + self._wait_s
