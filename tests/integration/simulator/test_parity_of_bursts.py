"""A burst, live and simulated: `asyfunc` makes a Shadow for it and releases it again at the same moments in both.

A burst is read as the rate of its arrivals (`gnomon/reading: arrivals`): what waits depends on the machine, and the moment of a
release on what waits. Far more arrive in it than a Body can take, far fewer outside, so that neither decision depends on how busy
this machine is beside it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gnomon_core.profiles import ModelProfile
from gnomon_core.settings import read_settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.parity import Parity, compare, read_recording
from gnomon_simulator.profiles import modelled
from gnomon_simulator.replay import Plan, Target, replay
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import simulate
from tests.integration.serve.bursting import MODEL, WITHIN, Function, Network, function, put_network, served
from tests.kubernetes.measured import SLOWER, in_a_hurry

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(300)]
READING = {"gnomon/reading": "arrivals", "gnomon/max-cores": "1"}
MOST = {"com.openfaas.scale.max": "1"}
STEADY, BURST = 0.15, 2.0
"""Of what a Body takes when it has this machine for itself."""
LEVELS = ((STEADY, 0.0, 2.75), (BURST, 2.75, 5.75), (STEADY, 5.75, 12.0))
STEPS = [(1, 1, 0, 0, 0), (1, 0, 0, 1, 0), (1, 0, 0, 0, 1)]
"""A Body, its Shadow, and the Shadow's release."""
ATTEMPTS = 3


def compared(burst: Function, line: Network, record: Path) -> Parity:
    """A live stretch from the deployment on, beside its simulation."""
    able_rps = SLOWER / line.sample_s
    times_s = [begin_s + at_s for share, begin_s, end_s in LEVELS for at_s in constant(share * able_rps, end_s - begin_s)]
    headers, body = line.request(0)
    target = Target(f"{burst.serving.url}/v2/models/{burst.name}/infer", headers=headers, body=body)
    replay(Plan(times_s, deadline_s=60.0), target).write_record(record)
    recording = read_recording(record, burst.decisions())
    [file] = (line.models / "profiles" / f"{MODEL}@1").iterdir()
    profile = modelled(ModelProfile.from_json(json.loads(file.read_bytes())), "shared")
    settings = read_settings(MOST, in_a_hurry(MODEL, line.sample_s, WITHIN) | READING)
    plan = recording.plan(burst.name, settings, profile, "profiled")
    parity = compare(recording, simulate([plan], [NodePlan("node-1", 2)])[burst.name])
    assert parity.answered == (len(times_s), len(times_s))
    return parity


def test_the_simulator_makes_and_releases_a_shadow_when_the_live_system_does(tmp_path: Path) -> None:
    """To a second. Where this machine is so busy that a pair ends by itself, the stretch is tried again."""
    line = put_network(tmp_path / "models", 1, 128)
    differed: list[str] = []
    with served(line, tmp_path / "state", 2) as serving:
        while len(differed) < ATTEMPTS:
            with function(serving, line, f"burst-{len(differed)}", reading="arrivals") as burst:
                parity = compared(burst, line, tmp_path / "record.jsonl")
            assert [step.what for step in parity.simulated] == STEPS, parity.summary()
            if parity.same_decisions and parity.largest_shift_s <= 1.0:
                return
            differed.append(f"{parity.table()}\n{parity.summary()['steps']}")
    pytest.fail("\n\n".join(differed))
