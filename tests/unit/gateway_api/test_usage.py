"""CPU usage as a rate."""

from __future__ import annotations

from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import Usage
from gnomon_gateway.api.functions import UsageMeter

FN = FunctionKey("fn")


def test_usage_is_thousandths_of_a_core_since_the_last_question() -> None:
    now_s = [10.0]
    meter = UsageMeter(lambda: now_s[0])
    assert meter.document(FN, Usage(5.0, 1 << 20)) == {"cpu": 0.0, "totalMemoryBytes": 1 << 20}
    now_s[0] = 12.0
    assert meter.document(FN, Usage(5.5, 1 << 20))["cpu"] == 250.0
    assert meter.document(FN, Usage(5.5, 1 << 20))["cpu"] == 0.0, "no time has passed"
    now_s[0] = 13.0
    assert meter.document(FN, Usage(1.0, 1 << 20))["cpu"] == 0.0, "a new function by the same name began at nothing"
