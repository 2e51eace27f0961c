"""What pods and activators tell, read and turned into counters."""

from __future__ import annotations

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.autoscaler.metrics import PodStat, RevisionLoad, beside, read_stat, waiting, waiting_to_text

# A line as queue-proxy of Knative 1.23 sent it: a pod's name, 2.5 requests on average of which 1.0 proxied, 40 and 20 a second.
PAGE = """# HELP kn_revision_request_queued Number of requests currently queued in the activator waiting for capacity
# TYPE kn_revision_request_queued gauge
kn_revision_request_queued{k8s_namespace_name="users",kn_revision_name="f-00001",otel_scope_name="knative.dev/serving/pkg/activator",otel_scope_schema_url="",otel_scope_version=""} 3
kn_revision_request_queued{k8s_namespace_name="users",kn_revision_name="idle-00001",otel_scope_name="x"} 0
kn_revision_request_queued{k8s_namespace_name="other",kn_revision_name="f-00001",otel_scope_name="x"} 1
kn_revision_request_active{k8s_namespace_name="users",kn_revision_name="f-00001",otel_scope_name="x"} 9
"""  # noqa: E501 - as it comes


def message(**fields: float) -> bytes:
    """A Stat as protobuf writes it: what is 0 is left out."""
    numbers = {"concurrency": 2, "proxied_concurrency": 3, "rps": 4, "proxied_rps": 5, "uptime": 6}
    name = b"f-00001-deployment-abc"
    data = bytes([1 << 3 | 2, len(name)]) + name
    for key, value in fields.items():
        if value:
            data += bytes([numbers[key] << 3 | 1]) + struct.pack("<d", value)
    return data


amounts = st.floats(min_value=0.0, max_value=1e6)


@given(amounts, amounts, amounts, amounts, amounts)
def test_a_stat_is_read_as_it_was_written(one: float, two: float, three: float, four: float, uptime: float) -> None:
    data = message(concurrency=one, proxied_concurrency=two, rps=three, proxied_rps=four, uptime=uptime)
    assert read_stat(data) == PodStat(concurrency=one, rps=three)


def test_fields_of_a_later_version_are_stepped_over() -> None:
    later = bytes([7 << 3 | 0, 0x96, 0x01]) + bytes([9 << 3 | 5, 1, 2, 3, 4]) + bytes([10 << 3 | 2, 2, 65, 66])
    assert read_stat(later + message(concurrency=2.0)) == PodStat(2.0)
    assert read_stat(b"") == PodStat()


@given(st.binary(max_size=60))
def test_whatever_a_pod_sends_is_read_or_refused(data: bytes) -> None:
    try:
        found = read_stat(data)
    except ValueError:
        return
    assert all(0.0 <= value < float("inf") for value in (found.concurrency, found.rps))


def test_a_stat_that_breaks_off_is_refused() -> None:
    whole = message(concurrency=2.0, rps=5.0)
    with pytest.raises(ValueError, match="truncated"):
        read_stat(whole[:-3])
    for value in (-1.0, 2e6, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=re.escape(f"is {value}")):
            read_stat(message(concurrency=value))


def test_only_requests_that_wait_are_taken_from_an_activators_page() -> None:
    assert waiting(PAGE) == {FunctionKey("f-00001", "users"): 3.0, FunctionKey("f-00001", "other"): 1.0}
    assert waiting("") == {}


def test_counters_rise_as_pods_tell_and_never_fall() -> None:
    load = RevisionLoad(0.0)
    seen: list[tuple[int, float]] = []
    for second in range(1, 21):
        busy = 1.0 if second <= 10 else 0.0
        load.pods(float(second), PodStat(concurrency=4.0 * busy, rps=60.0 * busy))
        for part in (0.0, 0.5):
            counters = load.counters(second + part)
            seen.append((counters.arrivals, counters.concurrency_s))
    assert seen == sorted(seen)
    # 10 s of 2 pods with 2 requests and 30 a second each; half a second too far is what was foreseen when it ended.
    arrivals, concurrency_s = seen[-1]
    assert 600 <= arrivals <= 630
    assert 40.0 <= concurrency_s <= 42.0


def test_requests_that_wait_are_in_the_system_too() -> None:
    load = RevisionLoad(0.0)
    assert load.waits(1.0, 5.0)
    assert not load.waits(1.2, 6.0)
    counters = load.counters(1.2)
    assert (counters.queued, counters.executing, counters.last_request_s) == (6, 0, 1.2)
    load.waits(1.4, 0.0)
    # 0.2 s with 5 and 0.2 s with 6 of them.
    assert load.counters(1.4).concurrency_s == pytest.approx(2.2)
    assert load.waits(9.0, 1.0)


def test_what_ended_long_ago_is_no_load_of_the_last_seconds() -> None:
    load = RevisionLoad(0.0)
    for second in range(1, 31):
        load.pods(float(second), PodStat(concurrency=4.0, rps=10.0) if second <= 15 else PodStat())
    assert load.recent(15.0, 6.0, by_rps=False) == pytest.approx(0.0, abs=4.0)
    assert load.recent(30.0, 6.0, by_rps=False) == 0.0
    assert not load.busy(30.0, 10.0)
    assert load.busy(30.0, 20.0)


def test_the_load_of_the_last_seconds_is_what_pods_told() -> None:
    load = RevisionLoad(0.0)
    for second in range(1, 20):
        load.pods(float(second), PodStat(concurrency=4.0, rps=10.0))
    assert load.recent(19.0, 6.0, by_rps=False) == pytest.approx(4.0)
    assert load.recent(19.0, 6.0, by_rps=True) == pytest.approx(10.0)


def test_a_pause_of_whoever_asks_is_no_load() -> None:
    load = RevisionLoad(0.0)
    load.pods(1.0, PodStat(rps=10.0))
    load.pods(500.0, PodStat(rps=10.0))
    assert load.counters(500.0).arrivals <= 60


def test_what_a_gateway_tells_is_read_as_what_activators_tell() -> None:
    one, other = FunctionKey("f-00001", "users"), FunctionKey("g-00001", "users")
    page = waiting_to_text({one: 7}, {one: 70, other: 3})
    assert waiting(page) == {one: 7.0}
    assert beside(page) == {one: 70.0, other: 3.0}
    assert beside(PAGE) == {}


def test_requests_that_came_in_batches_have_come() -> None:
    load = RevisionLoad(0.0)
    # Ten batches of eight a second: pods tell of ten.
    for second in range(1, 11):
        load.pods(float(second), PodStat(rps=10.0))
        load.beside(70.0)
    assert load.counters(10.0).arrivals == 800
