"""Reference cycles, for leak tests: cycles grow until the garbage collector runs, which then stops the event loop."""

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
    """Count the unreachable objects for which `counts` is true, by class: those that only the collector can free."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    found = Counter(type(candidate).__name__ for candidate in gc.garbage if counts(candidate))
    gc.set_debug(0)
    gc.garbage.clear()
    return found


def is_ours(candidate: object) -> bool:
    """True for an object of a class of Gnomon's, or a buffer; classes of test doubles (`testing`) do not count."""
    module = type(candidate).__module__
    return (module.startswith("gnomon_") and ".testing" not in module) or issubclass(type(candidate), memoryview)
