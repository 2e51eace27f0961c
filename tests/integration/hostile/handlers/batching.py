"""Answers each request with what it brought, many at a time."""

from typing import Any

RETRY_SAFE = True


def answer(event: Any) -> dict[str, Any]:
    token = event.headers["X-Token"]
    return {
        "statusCode": 200,
        "body": event.body,
        "headers": {"X-Token": token, "X-Path": event.path, "X-Query": event.query_string},
    }


def handle_batch(events: list[Any], context: Any) -> list[Any]:
    if any(event.path == "/poison" for event in events):
        # One that nobody can name: the batch is asked again by halves.
        raise ValueError
    return [answer(event) for event in events]
