"""Deploys a model, replays a burst under one scaling policy after the other, and shows what became of it.

The model is added and profiled first where that has not been done on this machine; both are kept, so the second time it begins
at once. What it prints: for each policy a row a second and why it did what it did, then a line a policy. The picture is
`burst.png` in the folder that `--output` names, `.cache/burst` without.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import gnomon
from benchmarks.burst.picture import Seen, draw, table
from benchmarks.burst.seconds import by_second
from benchmarks.burst.watch import Burst, Watch, able_rps, burst_for
from benchmarks.programs import ROOT, ended_well, step
from gnomon_core.profiles import ModelProfile
from gnomon_simulator.replay import Plan, Target, replay_apart
from gnomon_simulator.replay_report import Report

NAME = "burst"
POLICIES = ("asyfunc", "od", "k-lv")
REST_S = 3.0


def main() -> None:
    asked = _arguments()
    add_and_profile(asked.model)
    profile = read_profile(asked.model)
    slo_s = asked.slo_ms / 1e3 if asked.slo_ms else 2.0 * (profile.whole.at(1, 4) or 0.5)
    burst = burst_for(profile, slo_s, asked.max_batch, times=asked.times)
    if not burst.steady_rps:
        raise SystemExit(f"No batch of {asked.model} meets {1e3 * slo_s:.0f} ms on one core here: give it more with --slo-ms.")
    rate_rps = able_rps(profile, 1, slo_s, asked.max_batch)
    step(f"{asked.model}: objective {1e3 * slo_s:.0f} ms, one Body takes {rate_rps:.1f} requests/s within it")
    step(f"load: {burst.steady_rps:.1f}/s for {burst.before_s:g} s, {burst.burst_rps:.1f}/s for {burst.burst_s:g} s, and back")
    runs = [run(policy, asked, burst, slo_s) for policy in asked.policies.split(",")]
    for seen in runs:
        print(f"\n{seen.policy}, second by second (ready, + starting, - draining):\n{by_second(seen)}\n")
        print("\n".join(f"  {reason}" for reason in seen.reasons) or "  decided nothing")
    print(f"\n{table(runs)}")
    path = asked.output / "burst.png"
    draw(runs, f"{asked.model}, {1e3 * slo_s:.0f} ms, weights {asked.weight_mode}", path)
    print(f"\nThe picture: {path}")


def run(policy: str, asked: argparse.Namespace, burst: Burst, slo_s: float) -> Seen:
    """Run one policy on a Gnomon of its own."""
    with gnomon.serving() as ours:
        deploy(ours, policy, asked, slo_s)
        step(f"{policy}: serving; {burst.duration_s:g} s of load")
        watch = Watch(ours, NAME)
        watch.start()
        with ThreadPoolExecutor(1) as pool:
            report = pool.submit(load, ours, burst, 4 * slo_s).result()
        time.sleep(REST_S)
        looks = watch.stop()
        reasons = decisions(ours, datetime.fromisoformat(report.started_at))
    begun_s = report.started_monotonic_s
    moved = [replace(look, at_s=look.at_s - begun_s) for look in looks if begun_s <= look.at_s <= begun_s + burst.duration_s]
    return Seen(policy, burst, slo_s, report, moved, reasons)


def deploy(ours: gnomon.Gnomon, policy: str, asked: argparse.Namespace, slo_s: float) -> None:
    """Deploy the model with this policy and wait until it serves."""
    annotations = {
        "gnomon/model": asked.model,
        "gnomon/autoscaler": policy,
        "gnomon/scheduler": "adaptive",
        "gnomon/slo-ms": f"{1e3 * slo_s:.0f}",
        "gnomon/max-batch": str(asked.max_batch),
        "gnomon/weight-mode": asked.weight_mode,
        "gnomon/deadline-ms": f"{4e3 * slo_s:.0f}",
    }
    labels = {"com.openfaas.scale.min": "1", "com.openfaas.scale.max": str(asked.most)}
    ours.call(
        "POST", "/system/functions", {"service": NAME, "image": "gnomon/body", "annotations": annotations, "labels": labels}
    )
    ours.wait_replicas(NAME, 1)


def load(ours: gnomon.Gnomon, burst: Burst, deadline_s: float) -> Report:
    """Send the burst, each request a tensor of random numbers by the open inference protocol."""
    document = ours.call("GET", f"/v2/models/{NAME}")
    chance = np.random.default_rng(1)
    inputs: list[dict[str, Any]] = []
    tensors: list[bytes] = []
    for spec in document["inputs"]:
        shape = [1, *(int(size) for size in spec["shape"][1:])]
        tensors.append(chance.standard_normal(shape, dtype=np.float32).tobytes())
        inputs.append(
            {"name": spec["name"], "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": len(tensors[-1])}}
        )
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    target = Target(f"{ours.url}/v2/models/{NAME}/infer", headers=headers, body=b"".join((head, *tensors)))
    return replay_apart(Plan(burst.arrivals(seed=1), deadline_s, max_connections=512), target)


def decisions(ours: gnomon.Gnomon, since: datetime) -> list[str]:
    """Decisions of the policy since then, with their reasons, oldest first."""
    rows = ours.call("GET", f"/gnomon/functions/{NAME}/decisions?limit=500")
    changed = [(datetime.fromisoformat(row["at"]), row["reason"]) for row in rows if row["actions"]]
    return [f"{(at - since).total_seconds():6.2f} s  {reason}" for at, reason in sorted(changed) if at >= since]


def add_and_profile(model: str) -> None:
    """Put the model and its profile where `gnomon serve` of a benchmark finds them, unless they are there."""
    common = ["--models", str(gnomon.MODELS)]
    subprocess.run([gnomon.COMMAND, "models", "add", model, *common], check=True)
    if not profile_files(model):
        step(f"{model} has no profile of this machine yet: measuring, some minutes")
        subprocess.run([gnomon.COMMAND, "models", "profile", model, *common, "--cores", "1", "--repeats", "5"], check=True)


def profile_files(model: str) -> list[Path]:
    """The profiles of the model's first version, the newest last."""
    folder = gnomon.MODELS / "profiles" / f"{model}@1"
    return sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime) if folder.is_dir() else []


def read_profile(model: str) -> ModelProfile:
    return ModelProfile.from_json(json.loads(profile_files(model)[-1].read_text(encoding="utf-8")))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.burst", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="torchvision:resnet50", help="as `gnomon models add` takes it")
    parser.add_argument("--policies", default=",".join(POLICIES), help=f"default {','.join(POLICIES)}")
    parser.add_argument("--slo-ms", type=float, help="the objective; default: twice what a batch of 4 takes on one core")
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--most", type=int, default=2, help="the most Bodies")
    parser.add_argument("--times", type=float, default=1.3, help="the burst's rate over what one Body takes; default 1.3")
    parser.add_argument("--weight-mode", choices=("shared", "private"), default="shared")
    parser.add_argument("--output", type=Path, default=ROOT / ".cache" / "burst")
    return parser.parse_args()


if __name__ == "__main__":
    ended_well(main)
