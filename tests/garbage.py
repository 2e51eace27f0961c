"""What only the garbage collector can free: cycles, which grow until it runs and stop the event loop while it does."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def collected_only_when_asked() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def garbage(counts: Callable[[object], bool]) -> Counter[str]:
    """What only the collector can free and `counts`, by class."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = Counter(type(one).__name__ for one in gc.garbage if counts(one))
    gc.set_debug(0)
    gc.garbage.clear()
    return found


def is_ours(one: object) -> bool:
    """True if this is an object of a class of ours, or a buffer; what stands in for a cloud is not."""
    module = type(one).__module__
    return (module.startswith("gnomon_") and ".testing" not in module) or isinstance(one, memoryview)
