"""Assertion of an expected `GnomonError` in one line of a test."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gnomon_core.errors import GnomonError


@contextmanager
def refused(
    status: int | None = None, code: str | None = None, *, match: str | None = None, message: str = "", hint: str = ""
) -> Iterator[pytest.ExceptionInfo[GnomonError]]:
    """Expect a `GnomonError` with this status and code; `match` is a pattern, `message` and `hint` are parts of theirs."""
    with pytest.raises(GnomonError, match=match) as caught:
        yield caught
    error = caught.value
    assert status in (None, error.status)
    assert code in (None, error.code)
    assert message in error.message
    assert hint in error.hint
