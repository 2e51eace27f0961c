"""A connection for each request, and connections whose clients have gone, beside uvicorn with httptools and uvloop.

    python -m benchmarks.reliability.connections [--quick]

64 clients in two processes ask by `Connection: close`, in rounds that alternate: Gnomon's HTTP server and uvicorn, each of which
answers at once, and beside them `/function/noop`, which passes a queue, a policy and an instance process. Then 1,900 clients
connect, send and close, and the next one's answer is timed. Each server has one process; nothing is pinned by the benchmark.

At last a function of 20 ms a batch is offered three times its capacity (found with connections that are kept), a connection for
each request; clients leave at the deadline of 250 ms.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import gnomon
from benchmarks.load import capacity, settle
from benchmarks.programs import ROOT, Pace, free_port, running, start, step
from benchmarks.reliability import _clients as clients
from benchmarks.report import Figure, measured, write

CLIENTS = 64
DEAD = 1900
OVERLOAD = 3.0
DEADLINE_S = 0.25
GUESS_RPS = 500.0
GENERATORS = 2
APPLICATION = ROOT / "benchmarks" / "peers" / "applications" / "uvicorn_application.py"
BODY = b'{"x": [7]}'
PATH = "/function/noop"


def main(pace: Pace) -> None:
    with contextlib.ExitStack() as stack:
        ours, folder = stack.enter_context(gnomon.serving()), stack.enter_context(gnomon.temporary())
        apart = stack.enter_context(clients.processes(GENERATORS))
        ours.up("noop")
        uvicorn = stack.enter_context(serving([str(APPLICATION)], folder / "uvicorn"))
        alone = stack.enter_context(serving(["-m", "benchmarks.reliability._server"], folder / "server"))
        figures = [
            *close({"gnomon's server": alone, "uvicorn": uvicorn, "gnomon, a function": port_of(ours)}, pace, apart),
            *dead({"gnomon": port_of(ours), "uvicorn": uvicorn}, pace, apart),
        ]
    with gnomon.serving() as ours, clients.processes(GENERATORS) as apart:
        figures += overload(ours, pace, apart)
    write(
        "reliability_connections",
        figures,
        repeats=pace.repeats,
        packages=("gnomon", "uvicorn", "uvloop", "httptools"),
        folder=pace.results,
    )


def close(ports: Mapping[str, int], pace: Pace, apart: Callable[..., Any]) -> list[Figure]:
    """Requests a second where each has a connection."""
    found: dict[str, list[float]] = {name: [] for name in ports}
    share, asked_bytes = CLIENTS // GENERATORS, clients.raw_request(PATH, BODY, "Connection: close")
    for number in range(pace.repeats + 1):  # the first warms up
        for name, port in ports.items():
            runs = [
                apart(clients.connection_per_request, port, asked_bytes, share, float(pace.load_s)) for _ in range(GENERATORS)
            ]
            answered, failed = (sum(counts) for counts in zip(*[run.result() for run in runs], strict=True))
            if failed:
                raise RuntimeError(f"{name}: {failed} requests failed")
            if number:
                found[name].append(answered / pace.load_s)
        step(", ".join(f"{name} {rates[-1]:.0f}/s" for name, rates in found.items() if rates) or "warm")
    said = f"Connection: close, {CLIENTS} clients"
    return [
        measured("close_times_uvicorn", ratios(found, "gnomon's server"), "×", at_least=1.0, detail=f"{said}; servers alone"),
        measured("close_times_uvicorn (function)", ratios(found, "gnomon, a function"), "×", detail=f"{said}; uvicorn's alone"),
        *(measured(f"close_requests ({name})", rates, "requests/s") for name, rates in found.items()),
    ]


def ratios(found: Mapping[str, list[float]], name: str) -> list[float]:
    return [mine / theirs for mine, theirs in zip(found[name], found["uvicorn"], strict=True)]


def dead(ports: Mapping[str, int], pace: Pace, apart: Callable[..., Any]) -> list[Figure]:
    """The time that a client waits behind disconnected ones."""
    found: dict[str, list[float]] = {name: [] for name in ports}
    for _ in range(pace.repeats):
        for name, port in ports.items():
            found[name].append(apart(clients.disconnecting, port, clients.raw_request(PATH, BODY), DEAD).result())
        step(", ".join(f"{name} {waits[-1]:.3f} s behind {DEAD} dead connections" for name, waits in found.items()))
    return [
        measured(f"after_{DEAD}_dead ({name})", waits, "s", at_most=0.3 if name == "gnomon" else None)
        for name, waits in found.items()
    ]


def overload(ours: gnomon.Gnomon, pace: Pace, apart: Callable[..., Any]) -> list[Figure]:
    """Three times the capacity, a connection for each request."""
    endpoint = ours.up("sleep20")
    able_rps = capacity(endpoint, GUESS_RPS, pace.step_s, DEADLINE_S)
    shares: list[float] = []
    said = ""
    for seed in range(max(2, pace.repeats // 2)):
        asked_bytes = clients.raw_request("/function/sleep20", BODY, "Connection: close")
        rate_rps, seconds = OVERLOAD * able_rps / GENERATORS, pace.overload_s / 4
        runs = [
            apart(clients.open_loop, port_of(ours), asked_bytes, rate_rps, seconds, DEADLINE_S, seed=GENERATORS * seed + number)
            for number in range(GENERATORS)
        ]
        results = [run.result() for run in runs]
        found = {key: sum(result[key] for result in results) for key in results[0]}
        shares.append(100 * found["ok"] / seconds / able_rps)
        said = f"capacity {able_rps:.0f}/s; the last run's: {found}"
        step(f"{shares[-1]:.0f} % of {said}")
        settle(endpoint, DEADLINE_S)
    return [measured("goodput_at_3x_a_connection_each", shares, "%", at_least=90.0, detail=said)]


@contextlib.contextmanager
def serving(program: Sequence[str], folder: Path) -> Iterator[int]:
    """A program of Python that serves HTTP, for the length of a block; its port."""
    port = free_port()
    environment = {"PYTHONPATH": str(ROOT)}
    with running([sys.executable, *program, str(port)], folder, environment) as started:
        started.wait_ready(f"http://127.0.0.1:{port}/")
        yield port


def port_of(ours: gnomon.Gnomon) -> int:
    return int(ours.address.rpartition(":")[2])


if __name__ == "__main__":
    start(main, __doc__)
