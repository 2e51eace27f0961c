"""The cost of a request: a function that does nothing, in an instance process of its own, through the whole path.

    python -m benchmarks.noop [--quick]

Every system has one worker process with one thread and takes batches of up to 16. Gnomon's figures are those of `immediate`,
which never waits for a batch; beside it stands `fixed` with Mosec's way of batching, up to 1 ms of waiting. Mosec is measured
with two ways to wait for a batch and without batching, MLServer with and without; each is compared by its best. The bodies are
JSON, {"x": [7]} in and {"y": [7]} out; MLServer's are the V2 protocol's. Load: wrk with one thread on the same machine. All
systems are up all the time and loaded in turn.
"""

from __future__ import annotations

import contextlib

from benchmarks import gnomon
from benchmarks.load import Load, alternate, best, rates, ratios
from benchmarks.peers import mlserver, mosec
from benchmarks.programs import Endpoint, Pace, start
from benchmarks.report import Figure, measured, write

CONNECTIONS = 16
BATCH = 16
SETTINGS = f"1 worker, 1 thread, JSON, {CONNECTIONS} connections"
OURS = "gnomon, immediate, B=16"
OURS_WAITING = "gnomon, fixed, B=16, 1 ms"


def main(pace: Pace) -> None:
    with contextlib.ExitStack() as stack:
        endpoints = start_all(stack)
        many = alternate(endpoints, CONNECTIONS, pace.load_s, pace.repeats)
        single = alternate(endpoints, 1, pace.load_s, pace.repeats)
    figures = [*throughput(many), *latency(single)]
    write("noop", figures, repeats=pace.repeats, packages=("gnomon", "uvicorn", "uvloop", "httptools"), folder=pace.results)


def start_all(stack: contextlib.ExitStack) -> dict[str, Endpoint]:
    """Every system with every setting, serving."""
    folder = stack.enter_context(gnomon.temporary())
    ours = stack.enter_context(gnomon.serving())
    endpoints = {OURS: ours.up("noop"), OURS_WAITING: ours.up("noop-1ms", "noop")}
    for name, batch, wait_ms in (("B=16, 1 ms", BATCH, 1), ("B=16", BATCH, 0), ("B=1", 1, 0)):
        endpoints[f"mosec, {name}"] = stack.enter_context(
            mosec("noop", folder / f"mosec-{batch}-{wait_ms}", batch=batch, wait_ms=wait_ms)
        )
    for name, batch, wait_ms in (("B=16, 1 ms", BATCH, 1), ("B=1", 1, 0)):
        endpoints[f"mlserver, {name}"] = stack.enter_context(
            mlserver("noop", folder / f"mlserver-{batch}", batch=batch, wait_ms=wait_ms)
        )
    return endpoints


def throughput(found: dict[str, list[Load]]) -> list[Figure]:
    the_mosec, the_mlserver = best(found, "mosec"), best(found, "mlserver")
    beside_mosec = f"beside {the_mosec}; {SETTINGS}"
    return [
        measured(
            "times_mlserver",
            ratios(found[OURS], found[the_mlserver]),
            "×",
            at_least=3.0,
            detail=f"beside {the_mlserver}; {SETTINGS}",
        ),
        measured("times_mosec", ratios(found[OURS], found[the_mosec]), "×", at_least=0.8, detail=beside_mosec),
        measured(
            "times_mosec (both wait up to 1 ms for 16)",
            ratios(found[OURS_WAITING], found["mosec, B=16, 1 ms"]),
            "×",
            at_least=0.8,
            detail=SETTINGS,
        ),
        *(measured(f"requests ({name})", rates(loads), "requests/s", detail=SETTINGS) for name, loads in found.items()),
    ]


def latency(found: dict[str, list[Load]]) -> list[Figure]:
    return [
        measured(
            f"one_connection_median ({name})",
            [load.median_ms for load in loads],
            "ms",
            at_most=0.5 if name == OURS else None,
        )
        for name, loads in found.items()
    ]


if __name__ == "__main__":
    start(main, __doc__)
