"""Real instances without a platform, for tests and measurements: whoever uses this plays gateway and coordinator.

instances  a supervisor with a zygote that has torch, its Bodies and pool containers, a model's files, and a coordinator's
messages
remote     a Shadow as its image serves it, on a port of this machine

What they are told, and what memory they share, comes from the caller.
"""

from gnomon_runtime.pair.testing.instances import (
    BODY,
    FUNCTION,
    MAX_BATCH,
    OK,
    Buffers,
    Child,
    Model,
    Nursery,
    Task,
    change,
    join,
    load,
    tell_body,
)

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
