"""Carry out the actions of a decision: dispatch each to an `Actuator` method, and handle refusals.

    class BodiesOfAFunction:                      # an `Actuator`
        def create_body(self, action: CreateBody) -> None: …
        def destroy_body(self, action: DestroyBody) -> None: …
        …

    carry_out(BodiesOfAFunction(…), decision.actions)

Actions are carried out in order. A `Dispensable` action may be refused, and the rest continues: in a burst it may be
refused at each tick. The refusal of any other action ends the decision: the next action may end the instance to be replaced.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gnomon_core.errors import GnomonError
from gnomon_core.scaling import (
    Action,
    ChangeShadow,
    CreateBody,
    CreateShadow,
    DestroyBody,
    DestroyShadow,
    Dispensable,
    PromoteShadow,
    Resize,
    SetBufferPlan,
)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(slots=True)
class PartlyRefused(GnomonError):  # noqa: N818 - named after what has happened
    """A decision was carried out in part. The error is the last refusal, `done` the actions that were carried out."""

    done: tuple[Action, ...] = ()


class Actuator(Protocol[T_co]):
    """The executor of actions on one function. `T_co` is None, or an awaitable if the methods are coroutines.

    An action on an instance that has ended since the decision is ignored. A method refuses an action by a `GnomonError`.
    """

    def create_body(self, action: CreateBody) -> T_co: ...
    def destroy_body(self, action: DestroyBody) -> T_co: ...
    def create_shadow(self, action: CreateShadow) -> T_co: ...
    def change_shadow(self, action: ChangeShadow) -> T_co: ...
    def destroy_shadow(self, action: DestroyShadow) -> T_co: ...
    def promote_shadow(self, action: PromoteShadow) -> T_co: ...
    def resize(self, action: Resize) -> T_co: ...
    def set_buffer_plan(self, action: SetBufferPlan) -> T_co: ...


def carry_out(actuator: Actuator[None], actions: Sequence[Action]) -> None:
    """Carry out a decision.

    Raises:
        PartlyRefused: an action was refused.

    """
    progress = _Progress(actions)
    for action in progress:
        with progress.attempt(action):
            _begin(actuator, action)
    progress.raise_refusal()


async def carry_out_async(actuator: Actuator[Awaitable[None]], actions: Sequence[Action]) -> None:
    """Carry out a decision, one action after the other.

    Raises:
        PartlyRefused: an action was refused.

    """
    progress = _Progress(actions)
    for action in progress:
        with progress.attempt(action):
            await _begin(actuator, action)
    progress.raise_refusal()


def _begin(actuator: Actuator[T], action: Action) -> T:  # noqa: PLR0911 - one return for each action
    match action:
        case CreateBody():
            return actuator.create_body(action)
        case DestroyBody():
            return actuator.destroy_body(action)
        case CreateShadow():
            return actuator.create_shadow(action)
        case ChangeShadow():
            return actuator.change_shadow(action)
        case DestroyShadow():
            return actuator.destroy_shadow(action)
        case PromoteShadow():
            return actuator.promote_shadow(action)
        case Resize():
            return actuator.resize(action)
        case SetBufferPlan():
            return actuator.set_buffer_plan(action)


class _Progress:
    """The progress of a decision: actions to attempt, actions carried out, and the last refusal."""

    def __init__(self, actions: Sequence[Action]) -> None:
        self._actions = actions
        self._done: list[Action] = []
        self._refused: GnomonError | None = None
        self._over = False

    def __iter__(self) -> Iterator[Action]:
        for action in self._actions:
            if self._over:
                return
            yield action

    @contextmanager
    def attempt(self, action: Action) -> Iterator[None]:
        try:
            yield
        except GnomonError as error:
            self._refused = error
            # A refused `CreateBody` ends the decision, because the next action may end the Body that it was to replace.
            self._over = not isinstance(action, Dispensable)
        else:
            self._done.append(action)

    def raise_refusal(self) -> None:
        if self._refused is not None:
            why = self._refused
            # Raised after the loop, because the remaining actions may be carried out although one was refused.
            raise PartlyRefused(why.status, why.code, why.message, why.hint, why.retry_after_s, tuple(self._done)) from why
