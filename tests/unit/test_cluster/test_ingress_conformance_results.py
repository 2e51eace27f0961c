"""What is read of the words of Go's tests, and what is kept of them."""

from __future__ import annotations

from deploy.test_cluster.ingress_conformance.__main__ import results
from deploy.test_cluster.ingress_conformance.record import STABLE_COUNT, good, record, stage
from deploy.test_cluster.suites import Result

SAID = """\
=== RUN   TestIngressConformance/basics
--- FAIL: TestIngressConformance (0.01s)
    --- PASS: TestIngressConformance/headers/tags (8.12s)
        --- PASS: TestIngressConformance/headers/tags/no_tag_header (0.00s)
    --- FAIL: TestIngressConformance/dispatch/path (115.06s)
        --- FAIL: TestIngressConformance/dispatch/path//foo (1.00s)
    --- SKIP: TestIngressConformance/httpoption (0.00s)
FAIL
"""


def test_each_test_is_read_once_and_its_parts_are_not() -> None:
    found = results(SAID)
    assert found == [
        Result("dispatch/path", "FAIL", 115.06),
        Result("headers/tags", "PASS", 8.12),
        Result("httpoption", "SKIP", 0.0),
    ]
    assert [stage(one.name) for one in found] == ["stable", "beta", "alpha"]


def test_what_is_kept_names_each_test_with_its_stage_and_counts_the_stable_ones() -> None:
    kept = record(results(SAID), parallel=2, haproxy="2.6.12")
    assert kept["stable"] == {"tests": STABLE_COUNT, "passed": 0}
    assert kept["tests"]["dispatch/path"] == {"stage": "stable", "outcome": "FAIL", "seconds": 115.06}
    assert kept["tests"]["headers/tags"] == {"stage": "beta", "outcome": "PASS", "seconds": 8.12}
    assert kept["versions"]["haproxy"] == "2.6.12"
    assert kept["versions"]["knative.dev/networking"].startswith("v0.")


def test_a_run_is_good_where_every_stable_test_ended_and_none_failed() -> None:
    whole = [Result(f"test-{number}", "PASS", 1.0) for number in range(STABLE_COUNT)]
    assert good(whole, only_some=False)
    assert not good(whole[1:], only_some=False), "one did not end"
    assert good(whole[:1], only_some=True)
    assert not good([], only_some=True), "none of that name"
    assert not good([*whole[1:], Result("test-0", "FAIL", 1.0)], only_some=False)
    # Beta tests need not be there, but none of them may fail.
    assert not good([*whole, Result("host-rewrite", "FAIL", 1.0)], only_some=False)
