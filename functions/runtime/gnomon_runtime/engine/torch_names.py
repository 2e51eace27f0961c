"""The few names of torch that are private but have no public equivalent, in one place.

`bindings` are the generated Python bindings that `torch.nn.functional` wraps; `callable_of` is what an overload's own call method
calls; the schema is what `print(overload)` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten: Any = torch.ops.aten
bindings: Any = torch._C._nn  # noqa: SLF001 - see above


def callable_of(overload: Any) -> Callable[..., Any]:
    """An overload without its Python frame."""
    called: Callable[..., Any] = overload._op  # noqa: SLF001
    return called


def schema_of(overload: Any) -> Any:
    """An overload's schema."""
    return overload._schema  # noqa: SLF001
