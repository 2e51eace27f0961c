"""How two classes compare by the same tests."""

from __future__ import annotations

from deploy.test_cluster.serving_conformance.record import Comparison, record

STOCK = """\
--- PASS: TestRouteCreation (8.12s)
--- PASS: TestRevisionTimeout (40.00s)
    --- PASS: TestRevisionTimeout/does_not_exceed (12.00s)
    --- PASS: TestRevisionTimeout/exceeds (22.00s)
--- FAIL: TestMustHaveCgroupConfigured (4.00s)
--- SKIP: TestContainerErrorMsg (0.00s)
"""
OURS = """\
--- PASS: TestRouteCreation (9.00s)
--- FAIL: TestRevisionTimeout (40.00s)
    --- PASS: TestRevisionTimeout/does_not_exceed (12.00s)
    --- FAIL: TestRevisionTimeout/exceeds (22.00s)
--- FAIL: TestMustHaveCgroupConfigured (4.00s)
"""


def compared(*said: tuple[str, str]) -> Comparison:
    found = Comparison()
    for name, text in said:
        found.add(name, "runtime", text)
    return found


def test_what_only_the_stock_class_passes_is_named_with_its_part() -> None:
    found = compared(("kpa", STOCK), ("gnomon", OURS))
    assert found.lost() == ["runtime/TestRevisionTimeout", "runtime/TestRevisionTimeout/exceeds"]
    kept = record(found, parallel=2)
    assert kept["passes_by_the_stock_class_only"] == found.lost()
    assert kept["tests"]["runtime/TestContainerErrorMsg"] == {"kpa": "SKIP", "gnomon": "-"}
    assert kept["versions"]["knative.dev/serving"].startswith("v0.")
    assert "kpa: 4 PASS, 1 FAIL, 1 SKIP, 0 -" in found.lines()


def test_a_test_that_did_not_end_is_lost_where_the_stock_class_passes_it() -> None:
    assert compared(("kpa", STOCK), ("gnomon", "panic: test timed out")).lost() == compared(("kpa", STOCK)).passed()


def test_by_one_class_alone_what_fails_is_lost() -> None:
    assert compared(("gnomon", OURS)).lost() == [
        "runtime/TestMustHaveCgroupConfigured",
        "runtime/TestRevisionTimeout",
        "runtime/TestRevisionTimeout/exceeds",
    ]
