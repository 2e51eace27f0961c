"""A poison request among innocent ones that share its batches: how many of the innocents it fails.

    python -m benchmarks.reliability poison [--quick]

A batch handler in batches of up to 8, 64 clients at a time, one request in fifty poison: it raises in the handler, or ends its
instance. Once declared idempotent (`gnomon/retry`), where no innocent may fail, and once not, where nothing may be executed a
second time and whoever shared the batch fails with it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import threading
from collections import Counter

from benchmarks import gnomon
from benchmarks.programs import Pace, asked, ended_well, step
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
                codes = answers(ours.address, requests, poison)
            failed = sum(count for code, count in codes.items() if code != http.client.OK)
            kind = "idempotent" if idempotent else "not idempotent"
            detail = f"of {sum(codes.values())}: " + ", ".join(f"{count} × {code}" for code, count in sorted(codes.items()))
            goal = 0.0 if idempotent else None
            figures.append(measured(f"innocents failed, {poison}, {kind}", [float(failed)], "", at_most=goal, detail=detail))
    write("reliability_poison", figures, repeats=1, packages=("gnomon",), folder=pace.results)


def answers(address: str, requests: int, poison: str) -> Counter[int]:
    """The status codes of innocent requests, of which each answer is checked to be its own."""
    numbers, codes, counting = itertools.count(), Counter[int](), threading.Lock()

    def client() -> None:
        connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
        while (number := next(numbers)) < requests:
            innocent = number % EVERY != 0
            body = {"token": number} if innocent else {"token": number, "do": poison}
            connection.request("POST", f"/function/{FUNCTION}", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
            if answer.status == http.client.OK and json.loads(data) != {"token": number}:
                raise gnomon.RefusedError(f"request {number} was answered {data!r}")
            if innocent:
                with counting:
                    codes[answer.status] += 1
        connection.close()

    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    return codes


if __name__ == "__main__":
    ended_well(lambda: main(asked(__doc__ or "")))
