"""A decision on its way: its actions one after the other, and what becomes of the rest where one is refused.

    carrying = CarryingOut(decision.actions)
    for action in carrying:
        with carrying.attempt(action):
            …
    carrying.end()

What is `Dispensable` may be refused, and the rest goes on: in a burst it may be refused at each tick. The refusal of anything
else ends the decision, because what follows may be the end of what it was to replace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gnomon_core.errors import GnomonError
from gnomon_core.scaling import Action, Dispensable


@dataclass(slots=True)
class PartlyRefused(GnomonError):  # noqa: N818 - it is what happened
    """Why not all of a decision was carried out, the last of several reasons. `done` are those of its actions that were."""

    done: tuple[Action, ...] = ()


class CarryingOut:
    """One decision."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = actions
        self._done: list[Action] = []
        self._refused: GnomonError | None = None
        self._over = False

    def __iter__(self) -> Iterator[Action]:
        """The actions that are to be attempted."""
        for action in self._actions:
            if self._over:
                return
            yield action

    @contextmanager
    def attempt(self, action: Action) -> Iterator[None]:
        """Carry it out within this: a `GnomonError` is its refusal."""
        try:
            yield
        except GnomonError as error:
            self._refused = error
            self._over = not isinstance(action, Dispensable)
        else:
            self._done.append(action)

    def end(self) -> None:
        """All has been attempted.

        Raises:
            PartlyRefused: something was refused.

        """
        if self._refused is not None:
            why = self._refused
            raise PartlyRefused(why.status, why.code, why.message, why.hint, why.retry_after_s, tuple(self._done)) from why
