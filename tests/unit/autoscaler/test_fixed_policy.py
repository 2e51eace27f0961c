"""The fixed number on timelines."""

from gnomon_autoscaler.testing import Timeline
from gnomon_core.settings import ScaleSettings, Settings


def fixed(**scale: object) -> Settings:
    return Settings(autoscaler="fixed", scale=ScaleSettings(**scale))


def test_the_minimum_whatever_the_load() -> None:
    line = Timeline(fixed(min=3))
    line.rps, line.concurrency, line.queued = 1000.0, 500.0, 400
    line.play(60)
    assert line.live == 3


def test_what_an_operator_asked_for_until_the_minimum_changes() -> None:
    line = Timeline(fixed(min=1))
    line.requested = 4
    line.play(0.5)
    assert line.live == 4
    line.play(600)
    assert line.live == 4
    line.settings = fixed(min=2)
    line.play(0.5)
    assert line.live == 2


def test_minimum_zero_means_one_while_in_use() -> None:
    line = Timeline(fixed(min=0, zero_duration_s=30.0))
    line.play(35)
    assert line.live == 0
    line.queued = 1
    line.tick()
    assert line.live == 1
    line.queued = 0
    line.play(29)
    assert line.live == 1
    line.play(10)
    assert line.live == 0
