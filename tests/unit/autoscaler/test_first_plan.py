"""A process's first plan does no more than any other: what it needs is loaded when the policy is chosen."""

import subprocess
import sys

PROGRAM = """
import sys
from gnomon_autoscaler.registry import scaling_policy
from gnomon_core.settings import Settings
scaling_policy("batch", Settings(autoscaler="batch"))
from gnomon_autoscaler.policies.batch.plans import Task, plan_for
rows = {cores: tuple((0.05 + 0.02 * size) / cores for size in range(1, 9)) for cores in (1, 2, 4)}
loaded = set(sys.modules)
plan_for([8.0, 14.0, 9.0] * 20, 1.0, Task(0.5, 95.0, rows[1], 1, 10**9, 0.5, 50, None, rows, 400.0))
plan_for([8.0, 14.0, 9.0] * 20, 1.0, Task(0.5, 95.0, rows[1], 1, 10**9, 0.5, 50, 1769))
print(sorted(set(sys.modules) - loaded))
"""


def test_nothing_is_imported_in_the_second_that_a_first_plan_may_take() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout.strip() == "[]"
