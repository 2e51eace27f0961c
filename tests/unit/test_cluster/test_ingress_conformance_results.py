"""What is read of the words of Go's tests."""

from __future__ import annotations

from deploy.test_cluster.ingress_conformance.__main__ import results, stage
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
