"""What is said to a client whose body is not taken."""

from __future__ import annotations

from gnomon_core.errors import GnomonError


def too_large(limit_bytes: int) -> GnomonError:
    """413: more than is taken."""
    return GnomonError(
        413,
        "body_too_large",
        f"The body is larger than {limit_bytes} bytes.",
        "Send less, or a reference to where the data is.",
    )


def too_many_bodies(limit_bytes: int) -> GnomonError:
    """503: others are being received."""
    return GnomonError(
        503,
        "too_many_bodies",
        f"Large bodies are being received that hold {limit_bytes} bytes together.",
        "Send it again later.",
        retry_after_s=1.0,
    )
