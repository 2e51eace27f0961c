"""A leader that is frozen by SIGSTOP and comes back, 200 times: nothing of it is accepted after its successor has acted.

    python -m benchmarks.kubernetes.leader [--quick] [--rounds 200]

On an etcd and an apiserver of its own. Four Leases are fought for beside each other, since a round is mostly waiting. They last
3 s here, not 15 s. Half of the leaders are frozen at a moment of chance, half between the check of their term and the write
that was checked; half of them are thawed after their successor's first write, half about when it comes. The same is then done
by leaders that have the election alone, without checks and versions: were none of their writes late, this would show nothing.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kubernetes.candidate import TIMING
from benchmarks.kubernetes.elections import Tally, chain
from benchmarks.kubernetes.planes import booted
from benchmarks.pace import pace_of, pace_parser, step
from benchmarks.programs import ended_well
from benchmarks.report import Figure, measured, write

ROUNDS, QUICK_ROUNDS = 200, 8
CHAINS = 4
CONTROL_SHARE = 10
"""One round without guards for so many with them."""
SEED = 35
SLACK_S = 2.0
"""On top of the Lease: the candidates' look every 0.3 s, the write, and a machine that does other things."""


async def all_rounds(kubeconfig: Path, name: str, rounds: int, *, guarded: bool = True) -> Tally:
    """So many rounds, on several Leases at once."""
    shares = [rounds // CHAINS + (number < rounds % CHAINS) for number in range(CHAINS)]
    found = await asyncio.gather(
        *(
            chain(kubeconfig, f"{name}-{number}", share, SEED + number, guarded=guarded)
            for number, share in enumerate(shares)
            if share
        )
    )
    total = Tally()
    for one in found:
        total.add(one)
    return total


def main(arguments: Sequence[str] | None = None) -> None:
    parser = pace_parser(__doc__ or "")
    parser.add_argument("--rounds", type=int, help=f"how many; {ROUNDS} are the goal")
    given = parser.parse_args(arguments)
    pace = pace_of(given)
    rounds = given.rounds or (QUICK_ROUNDS if pace.quick else ROUNDS)
    with booted() as plane:
        step(f"{rounds} rounds of leaders as they are")
        guarded = asyncio.run(all_rounds(plane.kubeconfig, "guarded", rounds))
        step("the same without checks and versions")
        control = asyncio.run(all_rounds(plane.kubeconfig, "control", max(CHAINS, rounds // CONTROL_SHARE), guarded=False))
    write("kubernetes_leader", figures(guarded, control), repeats=1, packages=("gnomon", "kubernetes"), folder=pace.results)


def figures(guarded: Tally, control: Tally) -> list[Figure]:
    """What is published."""
    said = (
        f"of {guarded.writes} accepted; {guarded.between} leaders were frozen between a check and its write, "
        f"{guarded.unseen} writes not seen"
    )
    takeovers = guarded.takeovers_s
    longest = f"mean {statistics.fmean(takeovers):.2f} s; a Lease lasts {TIMING.duration_s} s"
    return [
        measured("rounds", [guarded.rounds], "rounds", at_least=ROUNDS),
        measured("late_writes_accepted", [guarded.late + guarded.unseen], "writes", at_most=0, detail=said),
        measured("frozen_leaders_that_ended", [guarded.ended / guarded.rounds], "share", at_least=1.0),
        measured("longest_takeover", [max(takeovers)], "s", at_most=TIMING.duration_s + SLACK_S, detail=longest),
        measured(
            "late_writes_without_guards",
            [control.late],
            "writes",
            detail=f"in {control.rounds} rounds of {control.writes} writes",
        ),
    ]


if __name__ == "__main__":
    ended_well(main)
