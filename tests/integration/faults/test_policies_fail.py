"""Scaling policies of third parties that misbehave once three instances serve: the three go on serving, and people are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.faults.callers import Callers, until
from tests.integration.faults.conftest import Faulty, serving

POLICIES = """
import time
from dataclasses import dataclass

from gnomon_autoscaler import counted
from gnomon_autoscaler.replica_policy import Wish


def sleeps():
    time.sleep(5)


def computes():
    while True:
        pass


def raises():
    raise RuntimeError("I had not thought of that")


def answers_nonsense():
    return "four"


def exits():
    raise SystemExit(3)


@dataclass(frozen=True)
class Until:
    name: str
    fault: object
    version: int = 1
    period_s: float = 0.2
    default_scheduler: str = "immediate"

    def wish(self, seen, memory):
        if len(seen.ready) == 3:
            return self.fault()
        return Wish(3, "three", {})


def offer(fault):
    return counted(lambda settings: Until(fault.__name__, fault), "Wants three, then fails.")


SLEEPS, COMPUTES, RAISES, NONSENSE, EXITS = map(offer, (sleeps, computes, raises, answers_nonsense, exits))
"""
NAMES = ("sleeps", "computes", "raises", "nonsense", "exits")


@pytest.fixture
def faulty(tmp_path: Path, build_archive: Callable[..., bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Faulty]:
    """A gateway whose operator named the five policies of an installed package; a sixth one is offered and not named."""
    installed = tmp_path / "site"
    information = installed / "misfits-1.0.dist-info"
    information.mkdir(parents=True)
    (installed / "misfits.py").write_text(POLICIES)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: misfits\nVersion: 1.0\n")
    lines = [f"{name} = misfits:{name.upper()}" for name in (*NAMES, "unnamed")]
    (information / "entry_points.txt").write_text("\n".join(["[gnomon.scaling_policies]", *lines, ""]))
    monkeypatch.setenv("PYTHONPATH", str(installed))
    yield from serving(tmp_path / "state", build_archive, *(f"--policy={name}" for name in NAMES))


async def test_a_policy_that_fails_leaves_the_last_decision_and_after_three_times_fixed_takes_over(
    faulty: Faulty, callers: Callers
) -> None:
    for name in NAMES:
        assert faulty.serve(name, autoscaler=name).status == 202
    await until(lambda: all(faulty.ready(name) == 3 for name in NAMES), "the policies did not decide")
    async with callers.load("sleeps", 2), callers.load("computes", 2), callers.load("raises", 2):
        await until(lambda: all("fixed instead" in str(faulty.decisions(name)) for name in NAMES), "nobody took over")
    assert set(callers.history.check()) == {"200"}
    said = {name: str(faulty.decisions(name)) for name in NAMES}
    assert "'NoneType' object has no attribute 'count'; the last decision stays in force" in said["sleeps"], (
        "waiting costs no CPU"
    )
    assert "no answer within 1 s of CPU time; the last decision stays in force" in said["computes"]
    assert "RuntimeError: I had not thought of that; the last decision stays in force" in said["raises"]
    for name in NAMES:
        assert faulty.decisions(name)[0]["desired"] == 3
        assert faulty.ready(name) == 3, "nothing was taken away"
        # It is still scaled: by `fixed`, at an operator's word.
        faulty.scale(name, 1)
    await until(lambda: all(faulty.ready(name) == 1 for name in NAMES), "fixed does not act")
    # What is installed and was not named is not known.
    answer = faulty.serve("sly", autoscaler="unnamed")
    assert (answer.status, answer.json()["error"]["code"]) == (400, "unknown_policy")
    assert all(name in answer.json()["error"]["hint"] for name in NAMES)
