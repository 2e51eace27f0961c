"""Real instances without a platform, for tests and measurements: whoever uses this plays gateway and coordinator.

models     a captured model's files, and what a pair does with it
instances  a supervisor with a zygote that has torch, and the Bodies and pool containers that are born there
orders     what a coordinator tells them, and the memory that they share
remote     a Shadow as its image serves it, on a port of this machine

What they are told, and what memory they share, comes from the caller.
"""

from gnomon_runtime.pair.testing.instances import Child, Nursery
from gnomon_runtime.pair.testing.models import BODY, FUNCTION, MAX_BATCH, OK, Model, Task
from gnomon_runtime.pair.testing.orders import Buffers, change, join, load, tell_body

__all__ = [
    "BODY",
    "FUNCTION",
    "MAX_BATCH",
    "OK",
    "Buffers",
    "Child",
    "Model",
    "Nursery",
    "Task",
    "change",
    "join",
    "load",
    "tell_body",
]
