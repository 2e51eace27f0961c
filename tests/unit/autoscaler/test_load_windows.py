"""Bins are exact whenever samples come."""

import pytest

from gnomon_autoscaler.windows import LoadWindows
from gnomon_core.scaling import LoadCounters


def counters(arrivals: int = 0, concurrency_s: float = 0.0) -> LoadCounters:
    return LoadCounters(arrivals, arrivals, concurrency_s, concurrency_s / 2)


def test_counters_become_counts_and_means_per_bin() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(10.0, counters())
    windows.record(10.5, counters(3, 1.0))
    windows.record(11.0, counters(4, 1.0))
    history = windows.history(11.2)
    assert tuple(history.arrivals) == (3, 1)
    assert tuple(history.successes) == (3, 1)
    assert tuple(history.concurrency) == (2.0, 0.0)  # 1.0 request × seconds in half a second
    assert tuple(history.busy_cores) == (1.0, 0.0)
    assert history.end_s == 11.0
    assert history.rate_rps(history.arrivals, 1.0) == 4.0


def test_bins_end_when_they_are_looked_at_whenever_the_first_sample_came() -> None:
    """Deployed at 10.1 s; looks come at 10.3, 10.8 …: that at 10.8 sees what came since the one before."""
    windows = LoadWindows(bin_s=0.5, origin_s=3.3)
    windows.record(10.1, counters())
    windows.record(10.3, counters(2))
    windows.record(10.8, counters(9))
    history = windows.history(10.8)
    assert tuple(history.arrivals) == pytest.approx((2, 7))
    assert history.end_s == pytest.approx(10.8)


def test_missed_ticks_are_spread_over_the_bins_they_missed() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters())
    windows.record(1.5, counters(12, 3.0))
    assert tuple(windows.history(1.5).arrivals) == (4, 4, 4)
    assert tuple(windows.history(1.5).concurrency) == (2.0, 2.0, 2.0)


def test_a_late_tick_belongs_to_the_bins_it_covers() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters())
    windows.record(0.6, counters(6))  # 10 rps
    windows.record(1.0, counters(6))
    assert tuple(windows.history(1.0).arrivals) == pytest.approx((5, 1))


def test_nothing_is_lost_or_counted_twice_over_many_ragged_ticks() -> None:
    windows = LoadWindows(bin_s=0.5, keep_s=300)
    windows.record(0.0, counters())
    now_s, arrivals = 0.0, 0
    for step in range(500):
        now_s, arrivals = now_s + 0.1 + (step % 7) * 0.13, arrivals + step % 5
        windows.record(now_s, counters(arrivals))
    edge_s = (int(now_s / 0.5) + 1) * 0.5
    windows.record(edge_s, counters(arrivals))
    history = windows.history(edge_s)
    assert sum(history.arrivals) == pytest.approx(arrivals)
    assert len(history.arrivals) == edge_s / 0.5


def test_a_sample_of_the_past_or_of_the_same_moment_changes_nothing() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters())
    windows.record(0.5, counters(2))
    windows.record(0.5, counters(9))
    windows.record(0.2, counters(9))
    assert tuple(windows.history(0.5).arrivals) == (2,)


def test_counters_that_fall_begin_a_new_curve_and_never_give_negative_load() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters(100))
    windows.record(0.5, counters(110))
    windows.record(1.0, counters(0))  # deployed again
    windows.record(1.5, counters(4))
    assert tuple(windows.history(1.5).arrivals) == (10, 4)


def test_only_what_is_kept_is_kept_also_after_a_pause_of_a_day() -> None:
    windows = LoadWindows(bin_s=0.5, keep_s=5)
    windows.record(0.0, counters())
    windows.record(86_400.0, counters(86_400))
    history = windows.history(86_400.0)
    assert len(history.arrivals) == 10
    assert tuple(history.arrivals) == pytest.approx((0.5,) * 10)
    assert history.end_s == 86_400.0


def test_before_the_first_sample_the_history_is_empty() -> None:
    history = LoadWindows().history(3.0)
    assert tuple(history.arrivals) == ()
    assert history.end_s == 3.0
    assert history.rate_rps(history.arrivals, 60) == 0.0


def test_saved_windows_go_on_without_the_time_in_between() -> None:
    windows = LoadWindows(bin_s=0.5)
    windows.record(0.0, counters())
    windows.record(1.0, counters(8))
    restored = LoadWindows.from_json(windows.to_json())
    restored.record(5000.0, counters())
    restored.record(5000.5, counters(2))
    assert tuple(restored.history(5000.5).arrivals) == (4, 4, 2)
    assert restored.history(5000.5).end_s == 5000.5


def test_windows_of_nothing_are_shared_and_small() -> None:
    many = [LoadWindows(bin_s=0.5, origin_s=0.0) for _ in range(3)]
    for windows in many:
        for step in range(1000):
            windows.record(step * 0.5, counters(7))
    histories = [windows.history(499.5) for windows in many]
    assert {len(history.arrivals) for history in histories} == {600}
    assert all(history.arrivals == (0.0,) * 600 == history.busy_cores for history in histories)
    assert len({id(history.arrivals) for history in histories}) == 1
    assert many[0].to_json() == {"bin_s": 0.5, "bins": [600]}


@pytest.mark.parametrize("quiet_s", [3.0, 299.0, 1000.0])
def test_load_between_silences_is_told_where_it_was(quiet_s: float) -> None:
    windows = LoadWindows(bin_s=0.5, keep_s=300)
    windows.record(0.0, counters())
    windows.record(10.0, counters())
    windows.record(11.0, counters(8, 2.0))
    windows.record(11.0 + quiet_s, counters(8, 2.0))
    arrivals = windows.history(11.0 + quiet_s).arrivals
    wanted = ([0.0] * 20 + [4.0, 4.0] + [0.0] * round(2 * quiet_s))[-600:]
    assert list(arrivals) == wanted
    restored = LoadWindows.from_json(windows.to_json())
    assert restored.history(0.0).arrivals == arrivals
    assert restored.history(0.0).concurrency == windows.history(11.0 + quiet_s).concurrency


def test_windows_that_were_saved_bin_by_bin_are_read() -> None:
    restored = LoadWindows.from_json({"bin_s": 0.5, "bins": [[0.0, 0.0, 0.0, 0.0], [2, 1, 0.5, 0.25], [0.0, 0.0, 0.0, 0.0]]})
    history = restored.history(9.0)
    assert (tuple(history.arrivals), tuple(history.successes)) == ((0.0, 2, 0.0), (0.0, 1, 0.0))
    assert (tuple(history.concurrency), tuple(history.busy_cores)) == ((0.0, 1.0, 0.0), (0.0, 0.5, 0.0))
