"""Cores held for Shadows, and who gets them when a node is full (AsyFunc, section 3.4)."""

import os

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Node
from gnomon_platforms.local.nodes import LocalNode

GIB = 2**30


def node() -> LocalNode:
    return LocalNode(tuple(range(8)), 8, GIB, reserved_cores=1.0)


def test_the_reserve_is_not_free_and_policies_are_told_of_it() -> None:
    held = node()
    assert (held.value().cores, held.value().free_cores, held.value().reserve_cores) == (8, 7, 1)
    held.claim("a", 6.0, 0, 6)
    assert (held.value().free_cores, held.value().reserve_cores) == (1, 1)
    held.claim("shadow", 1.0, 0, 1, from_reserve=True)
    assert (held.value().free_cores, held.value().reserve_cores) == (1, 0)


def test_a_shadow_takes_the_reserve_before_anything_else() -> None:
    held = node()
    held.claim("body", 7.0, 0, 7)
    assert held.value().free_cores == 0
    held.claim("shadow", 1.0, 0, 1, from_reserve=True)
    assert (held.value().free_cores, held.reserve_cores) == (0, 0)
    held.release("shadow")
    assert held.reserve_cores == 1


def test_a_body_that_fits_nowhere_else_gets_it_and_gives_it_back() -> None:
    held = node()
    held.claim("body", 7.0, 0, 7)
    held.claim("another", 1.0, 0, 1)
    assert (held.value().free_cores, held.reserve_cores) == (0, 0)
    with pytest.raises(GnomonError, match="cores"):
        held.claim("shadow", 1.0, 0, 1, from_reserve=True)
    held.release("another")
    assert (held.value().free_cores, held.reserve_cores) == (0, 1)


def test_a_shadow_larger_than_the_reserve_takes_the_rest_from_what_is_free() -> None:
    held = node()
    held.claim("shadow", 3.0, 0, 3, from_reserve=True)
    assert (held.value().free_cores, held.reserve_cores) == (5, 0)


def test_nothing_is_reserved_unless_asked_for() -> None:
    assert LocalNode((0, 1), 2, GIB).value() == Node(os.uname().nodename, 2, GIB, 2, GIB)


def test_a_refusal_tells_what_a_body_could_have_had() -> None:
    held = node()
    held.claim("body", 7.0, 0, 7)
    with pytest.raises(GnomonError, match=r"needs 2 cores and 0 MiB; node .* has 1 core "):
        held.claim("another", 2.0, 0, 2)


def test_the_memory_of_empty_containers_is_not_free_but_an_instance_gets_it() -> None:
    held = node()
    held.hold_for_pool(GIB // 4)
    assert held.value().free_memory_bytes == GIB - GIB // 4
    held.claim("body", 1.0, GIB - GIB // 8, 1)
    assert (held.value().free_memory_bytes, held.unclaimed_memory_bytes) == (0, GIB // 8)
    with pytest.raises(GnomonError, match="MiB"):
        held.claim("another", 1.0, GIB // 4, 1)
