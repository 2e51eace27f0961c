"""The wall clock's sleep never ends early, and moments of the calendar as others write them and as Gnomon does."""

import asyncio
import time
from collections.abc import Iterator

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.clock import EARLIEST_S, LATEST_S, WallClock, moment_s, rfc3339, seconds_of, utc_now_s

SLEEPS_S = (0.0, -1.0, 0.0001, 0.0004, 0.0006, 0.0012, 0.0014, 0.0024, 0.0034)
"""uvloop's timers count whole milliseconds and round: 1.4 ms would end after 1."""


async def earliest_s() -> float:
    clock, late_s = WallClock(), []
    for duration_s in SLEEPS_S * 3:
        begin_s = time.monotonic()
        await clock.sleep(duration_s)
        late_s.append(time.monotonic() - begin_s - duration_s)
    return min(late_s)


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_sleeper_does_not_wake_early(loop: type[asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(earliest_s()) >= 0.0


NOON_S = 1716638400.0


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock shows local time."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-05-25T12:00:00Z", NOON_S),
        ("2024-05-25t12:00:00z", NOON_S),
        ("2024-05-25T12:00:00.5Z", NOON_S + 0.5),
        ("2024-05-25T12:00:00,5Z", NOON_S + 0.5),
        ("2024-05-25T12:00:00.123456789Z", NOON_S + 0.123456),
        ("2024-05-25T14:00:00+02:00", NOON_S),
        ("2024-05-25T06:30:00.25-05:30", NOON_S + 0.25),
        ("2024-05-25T12:00:00-00:00", NOON_S),
        ("2024-05-25 14:00:00 +0200", NOON_S),
        ("20240525T120000Z", NOON_S),
        (" 2024-05-25T12:00:00Z\n", NOON_S),
        ("0001-01-01T00:00:00Z", -62135596800.0),
    ],
)
def test_every_form_of_a_moment_with_a_zone_is_read(text: str, seconds: float) -> None:
    assert moment_s(text, zone_needed=True) == pytest.approx(seconds, abs=1e-6)
    assert seconds_of(text) == moment_s(text)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("text", ["2024-05-25T12:00:00", "2024-05-25 12:00:00.0000000", "20240525T12"])
def test_without_a_zone_it_is_utc_wherever_we_are_and_refused_where_one_is_needed(text: str) -> None:
    assert moment_s(text) == seconds_of(text) == NOON_S
    with pytest.raises(ValueError, match="names no zone"):
        moment_s(text, zone_needed=True)


@pytest.mark.parametrize(
    "odd",
    [
        "",
        "yesterday",
        "None",
        "12",
        "2024-13-01T00:00:00Z",
        "2024-05-25T12:00:60Z",
        "2024-05-25T12:00:00Q",
        "٢٠٢٤",
        "\0",
        "9" * 5000,
    ],
)
def test_invalid_date_is_refused(odd: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        moment_s(odd)
    assert seconds_of(odd) == 0.0


@pytest.mark.parametrize("odd", [None, 3, [], {"at": 1}])
def test_nor_is_what_is_no_text(odd: object) -> None:
    assert seconds_of(odd) == 0.0


@given(st.text(max_size=30))
def test_nothing_but_a_value_error_comes_of_any_text(text: str) -> None:
    assert isinstance(seconds_of(text), float)


@pytest.mark.parametrize(
    ("seconds", "auto", "whole", "long"),
    [
        (NOON_S, "2024-05-25T12:00:00Z", "2024-05-25T12:00:00Z", "2024-05-25T12:00:00.000000Z"),
        (NOON_S + 0.75, "2024-05-25T12:00:00.750000Z", "2024-05-25T12:00:00Z", "2024-05-25T12:00:00.750000Z"),
        (-62135596800.0, "0001-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_a_moment_is_written_to_the_digit_that_is_asked_for(seconds: float, auto: str, whole: str, long: str) -> None:
    assert (rfc3339(seconds), rfc3339(seconds, "seconds"), rfc3339(seconds, "microseconds")) == (auto, whole, long)


@pytest.mark.usefixtures("elsewhere")
@given(st.integers(0, 4_000_000_000_000_000))
def test_written_date_is_read_back(microseconds: int) -> None:
    seconds = microseconds / 1e6
    for text in (rfc3339(seconds), rfc3339(seconds, "microseconds")):
        assert moment_s(text, zone_needed=True) == pytest.approx(seconds, rel=0, abs=1e-6)
    assert seconds - 1 < moment_s(rfc3339(seconds, "seconds")) <= seconds + 1e-6


@given(st.floats(allow_nan=False))
def test_any_number_can_be_written_and_sorts_as_a_text(seconds: float) -> None:
    text = rfc3339(seconds, "seconds")
    assert len(text) == len("2024-05-25T12:00:00Z")
    assert EARLIEST_S <= moment_s(text) <= LATEST_S


def test_now_is_within_this_era() -> None:
    assert "2024" < rfc3339(utc_now_s()) < "2100"
