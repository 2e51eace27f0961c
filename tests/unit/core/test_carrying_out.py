"""What is still carried out of a decision of which something is refused, whoever carries it out."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gnomon_core.actuation import CarryingOut, PartlyRefused
from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_core.scaling import Action, CreateBody, CreateShadow, DestroyBody, Resize

FIRST, SECOND = (CreateShadow(name, Pair(1, (0,), (0, 1))) for name in ("a", "b"))


def carried_out(actions: Sequence[Action], refused: Sequence[Action]) -> tuple[list[Action], PartlyRefused | None]:
    """What was done, and what was told, where these are refused."""
    carrying, done = CarryingOut(actions), list[Action]()
    for action in carrying:
        with carrying.attempt(action):
            if action in refused:
                raise GnomonError(503, "no_capacity", f"No room for {action}.", "Wait.", 1.0)
            done.append(action)
    try:
        carrying.end()
    except PartlyRefused as told:
        return done, told
    return done, None


def test_what_is_told_is_the_refusal_and_what_was_done_all_the_same() -> None:
    done, told = carried_out([FIRST, CreateBody(1)], [FIRST])
    assert told == PartlyRefused(503, "no_capacity", f"No room for {FIRST}.", "Wait.", 1.0, tuple(done))


def test_help_that_is_refused_holds_nothing_up_and_the_last_of_it_is_told() -> None:
    done, told = carried_out([FIRST, Resize("c", 2), SECOND, CreateBody(1)], [FIRST, SECOND])
    assert done == [Resize("c", 2), CreateBody(1)]
    assert told is not None
    assert told.message == f"No room for {SECOND}."


def test_a_body_that_is_refused_ends_the_decision() -> None:
    done, told = carried_out([FIRST, CreateBody(1), DestroyBody("c")], [CreateBody(1)])
    assert done == [FIRST]
    assert told is not None
    assert told.message == f"No room for {CreateBody(1)}."


def test_where_nothing_is_refused_nothing_is_told() -> None:
    assert carried_out([FIRST, CreateBody(1)], []) == ([FIRST, CreateBody(1)], None)


def test_what_is_no_refusal_is_not_kept_quiet() -> None:
    carrying = CarryingOut([FIRST])
    with pytest.raises(ZeroDivisionError), carrying.attempt(FIRST):
        raise ZeroDivisionError
