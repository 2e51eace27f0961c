"""The gain of batching where reading the weights is most of the work: three layers of 4096 × 4096, 201 MB.

    python -m benchmarks.weight_bound [--quick]

16 connections, batches of up to 16, one worker with one thread everywhere, JSON {"x": [7]} in and {"y": [0.01]} out (MLServer:
the V2 protocol). Gnomon serves the network as a handler with PyTorch in an environment of its own, as the peers do, once with
batches and once without. Every system is given two lengths of wait for a full batch, and is compared by its best.
"""

from __future__ import annotations

import contextlib

from benchmarks import gnomon
from benchmarks.load import Load, alternate, best, rates, ratios
from benchmarks.peers import ENVIRONMENTS, mlserver, mosec
from benchmarks.programs import Endpoint, Pace, start, step
from benchmarks.report import Figure, measured, write

CONNECTIONS = 16
BATCH = 16
WAITS_MS = (5, 20)
SETTINGS = f"1 worker, 1 thread, JSON, {CONNECTIONS} connections"


def main(pace: Pace) -> None:
    with contextlib.ExitStack() as stack:
        found = alternate(start_all(stack), CONNECTIONS, pace.load_s, pace.repeats)
    write("weight_bound", figures(found), repeats=pace.repeats, packages=("gnomon", "torch"), folder=pace.results)


def start_all(stack: contextlib.ExitStack) -> dict[str, Endpoint]:
    """Every system with every setting, serving."""
    folder = stack.enter_context(gnomon.temporary())
    # PyTorch's environment is kept from one run to the next, as the peers' are.
    ours = stack.enter_context(gnomon.serving(ENVIRONMENTS / "gnomon"))
    step("deploying; the first time, an environment with PyTorch is built: up to 3 GB to download")
    endpoints = {"gnomon unbatched": ours.up("mlp-unbatched", "mlp")}
    for wait_ms in WAITS_MS:
        endpoints[f"gnomon, fixed, B=16, {wait_ms} ms"] = ours.up(f"mlp-{wait_ms}ms", "mlp")
        endpoints[f"mosec, B=16, {wait_ms} ms"] = stack.enter_context(
            mosec("mlp", folder / f"mosec-{wait_ms}", batch=BATCH, wait_ms=wait_ms)
        )
        endpoints[f"mlserver, B=16, {wait_ms} ms"] = stack.enter_context(
            mlserver("mlp", folder / f"mlserver-{wait_ms}", batch=BATCH, wait_ms=wait_ms)
        )
    return endpoints


def figures(found: dict[str, list[Load]]) -> list[Figure]:
    the_best = {system: best(found, f"{system}, ") for system in ("gnomon", "mosec", "mlserver")}
    ours = found[the_best["gnomon"]]
    return [
        measured(
            "times_unbatched",
            ratios(ours, found["gnomon unbatched"]),
            "×",
            at_least=2.5,
            detail=f"{the_best['gnomon']}; {SETTINGS}",
        ),
        *(
            measured(
                f"times_{peer}",
                ratios(ours, found[the_best[peer]]),
                "×",
                at_least=1.0,
                detail=f"beside {the_best[peer]}; {SETTINGS}",
            )
            for peer in ("mosec", "mlserver")
        ),
        *(
            measured(f"requests ({name})", rates(loads), "requests/s", detail=f"median {loads[-1].median_ms:.0f} ms")
            for name, loads in found.items()
        ),
    ]


if __name__ == "__main__":
    start(main, __doc__)
