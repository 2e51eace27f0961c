"""What a gateway that serves for weeks does about garbage: all of it goes, and the pauses stay a small share of the time."""

from __future__ import annotations

import gc
import weakref

import pytest

from gnomon_server import process
from gnomon_server.process import FullCollections, next_collection_s
from tests.waiting import until


class Cycle:
    """Something that keeps itself."""

    def __init__(self) -> None:
        self.itself = self


async def test_garbage_that_outlived_the_small_collections_goes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "COLLECT_EVERY_S", 0.01)
    old = Cycle()
    gone = weakref.ref(old)
    gc.collect()
    gc.disable()  # nobody else collects it
    collections = FullCollections()
    try:
        collections.start()
        del old
        await until(lambda: gone() is None)
    finally:
        collections.stop()
        gc.enable()


@pytest.mark.parametrize(("took_s", "next_s"), [(0.0, 60.0), (0.02, 60.0), (0.2, 200.0)])
def test_a_long_collection_is_followed_by_a_long_pause(took_s: float, next_s: float) -> None:
    assert next_collection_s(took_s) == pytest.approx(next_s)
