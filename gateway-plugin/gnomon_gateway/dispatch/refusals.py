"""The platform's own answers to requests that were let in."""

from __future__ import annotations

from gnomon_core.errors import GnomonError

QUEUE_MOVED = "queue_moved"
"""The code of the error by which a request is handed on."""


def deadline_exceeded(waited_s: float) -> GnomonError:
    """504: its deadline passed before an answer came."""
    return GnomonError(
        504,
        "deadline_exceeded",
        f"No answer within the request's deadline; it has been here for {waited_s * 1e3:.0f} ms.",
        "Allow it more time (gnomon/deadline-ms), or let the function have more instances.",
        retry_after_s=1.0,
    )


def no_instance(waited_s: float) -> GnomonError:
    """503: its deadline passed before there was any instance."""
    return GnomonError(
        503,
        "no_instance",
        f"No instance of the function became ready within {waited_s * 1e3:.0f} ms, the request's deadline.",
        "See the function's logs and decisions for why none starts.",
        retry_after_s=1.0,
    )


def rejected(reason: str) -> GnomonError:
    """504: the scheduling policy gave the request up."""
    return GnomonError(504, "deadline_cannot_be_met", reason, "Allow it more time (gnomon/deadline-ms).", retry_after_s=1.0)


def instance_lost(instance_id: str) -> GnomonError:
    """502: the instance ended while it executed the request."""
    return GnomonError(
        502,
        "instance_lost",
        f"Instance {instance_id} ended before it answered.",
        "The request may have been executed; send it again only if that does no harm. The function's logs say more.",
    )


def invalid_result(instance_id: str) -> GnomonError:
    """502: the instance answered something that is not a result of this batch."""
    return GnomonError(
        502, "invalid_result", f"Instance {instance_id} did not answer every request of its batch.", "See the function's logs."
    )


def queue_moved() -> GnomonError:
    """421: another gateway replica has the function's queue now. Nothing was executed; whoever forwarded it asks that one."""
    return GnomonError(
        421, QUEUE_MOVED, "Another replica of the gateway has taken over this function's queue.", "Try again.", retry_after_s=1.0
    )


def function_removed() -> GnomonError:
    """503: the function is going away, and so does its queue."""
    return GnomonError(503, "function_removed", "The function has been removed.", "Deploy it again.")
