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

from gnomon_core.errors import GnomonError
from gnomon_core.scaling import Action, Dispensable


class CarryingOut:
    """One decision. `refused` is why something of it was not carried out, the last of several reasons."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self.refused: GnomonError | None = None
        self._actions = actions
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
            self.refused = error
            self._over = not isinstance(action, Dispensable)

    def end(self) -> None:
        """All has been attempted.

        Raises:
            GnomonError: `refused`.

        """
        if self.refused is not None:
            raise self.refused
