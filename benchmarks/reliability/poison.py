"""A poison request among innocent ones that share its batches: how many of the innocents it fails.

    python -m benchmarks.reliability poison [--quick]

A batch handler in batches of up to 8, 64 clients at a time, one request in fifty poison: it raises in the handler, or ends its
instance. Once declared idempotent (`gnomon/retry`), where no innocent may fail, and once not, where nothing may be executed a
second time and whoever shared the batch fails with it.
"""

from __future__ import annotations

import asyncio
import http
import json
from collections import Counter
from collections.abc import Iterator, Mapping

from benchmarks import gnomon
from benchmarks.programs import Pace, start, step
from benchmarks.reliability._clients import Outcome, Request, closed_loop
from benchmarks.report import Figure, measured, write

FUNCTION, CLIENTS, REQUESTS, EVERY = "picky", 64, 6400, 50
DEADLINE_MS = "20000"
INSTANCES = 2
LIMIT_S = 60.0


def main(pace: Pace) -> None:
    requests = 640 if pace.quick else REQUESTS
    figures: list[Figure] = []
    for poison in ("raise", "exit"):
        for idempotent in (True, False):
            step(f"poison that makes the handler {poison}, {'idempotent' if idempotent else 'not idempotent'}")
            with gnomon.serving() as ours:
                said = {"gnomon/retry": "true"} if idempotent else {}
                ours.deploy(FUNCTION, {**said, "gnomon/deadline-ms": DEADLINE_MS})
                ours.scale(FUNCTION, INSTANCES)
                codes = asyncio.run(statuses(ours, requests, poison))
            failed = sum(count for code, count in codes.items() if code != http.HTTPStatus.OK)
            kind = "idempotent" if idempotent else "not idempotent"
            detail = f"of {sum(codes.values())}: " + ", ".join(f"{count} × {code}" for code, count in sorted(codes.items()))
            goal = 0.0 if idempotent else None
            figures.append(measured(f"innocents failed, {poison}, {kind}", [float(failed)], "", at_most=goal, detail=detail))
    write("reliability_poison", figures, repeats=1, packages=("gnomon",), folder=pace.results)


def numbered(count: int, poison: str) -> Iterator[Request]:
    """Requests with a number each, which their answers repeat; one in `EVERY` is poison."""
    for number in range(count):
        answer = {"token": number}
        body = answer if is_innocent(answer) else {**answer, "do": poison}
        yield Request(f"/function/{FUNCTION}", json.dumps(body).encode(), answer)


def is_innocent(answer: Mapping[str, int]) -> bool:
    return answer["token"] % EVERY != 0


async def statuses(ours: gnomon.Gnomon, count: int, poison: str) -> Counter[int]:
    """The status codes of innocent requests, of which each answer is checked to be its own."""
    codes = Counter[int]()

    def record(request: Request, outcome: Outcome) -> None:
        if outcome.status == http.HTTPStatus.OK and json.loads(outcome.body) != request.expected:
            raise gnomon.RefusedError(f"{request.expected} was answered {outcome.body!r}")
        if is_innocent(request.expected):
            codes[outcome.status] += 1

    headers = {"Content-Type": "application/json"}
    await closed_loop(ours.url, CLIENTS, numbered(count, poison), record, headers=headers, timeout_s=LIMIT_S)
    return codes


if __name__ == "__main__":
    start(main, __doc__)
