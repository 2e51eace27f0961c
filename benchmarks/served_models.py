"""The requests/s of a served model with the engine `auto`, beside the layer program, Mosec and LitServe.

    python -m benchmarks.served_models [--quick]

Three networks, 16 connections, one worker with one thread everywhere, an image as a float32 tensor of 602 KB in and its logits
out: raw bytes at the peers, the open inference protocol's binary form at Gnomon. The peers serve the torch module in eager
mode, as their documentation shows it, and once more a file that was exported for ONNX Runtime by hand. ResNet50 and ViT-B/16
have random weights, which take the same time. Batches of up to 8, which the queue always holds.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from benchmarks import gnomon, peers
from benchmarks.load import Load, load, rates, ratios
from benchmarks.programs import Endpoint, Pace, Program, start, step
from benchmarks.report import Figure, measured, write
from gnomon_core.engines import AUTO, PROGRAM, REPORT, read_report
from gnomon_profiler.add import ensure_model
from gnomon_profiler.engines import add_engines
from gnomon_profiler.repository import DirectoryRepository

NETWORKS = {"EfficientNet-Lite0": "efficientnet-lite0", "ResNet50": "torchvision:resnet50", "ViT-B/16": "torchvision:vit_b_16"}
CONNECTIONS, BATCH = 16, 8
MOST_REPEATS = 3
LOAD_S = {"EfficientNet-Lite0": 5, "ResNet50": 8, "ViT-B/16": 12}
"""Seconds of load for each model: some ten batches of the slowest system."""
GOALS = {"EfficientNet-Lite0": 1.9, "ResNet50": 1.35, "ViT-B/16": 1.15}
SETTINGS = f"1 worker, 1 thread, {CONNECTIONS} connections, B={BATCH}"
IMAGE = bytes(3 * 224 * 224 * 4)
IMAGE_MODEL = "gnomon/body"


def main(pace: Pace) -> None:
    figures: list[Figure] = []
    for title, name in NETWORKS.items():
        with contextlib.ExitStack() as stack:
            endpoints, programs, engine = start_all(stack, name)
            found = in_turns(endpoints, programs, LOAD_S[title], min(pace.repeats, MOST_REPEATS))
        figures += figures_of(title, engine, found)
        # What has been measured is kept, whatever becomes of the next network.
        packages = ("gnomon", "torch", "onnxruntime", "openvino")
        write("served_models", figures, repeats=min(pace.repeats, MOST_REPEATS), packages=packages, folder=pace.results)


def in_turns(endpoints: dict[str, Endpoint], programs: dict[str, Program], seconds: int, repeats: int) -> dict[str, list[Load]]:
    """Load the endpoints in turn, after a round that warms them up. The peers that are not under load are paused."""
    found: dict[str, list[Load]] = {name: [] for name in endpoints}
    for number in range(repeats + 1):
        for name, endpoint in endpoints.items():
            program = programs.get(name)
            if program is not None:
                program.resume()
            measured_load = load(endpoint, CONNECTIONS, seconds)
            if program is not None:
                program.pause()
            if number:
                found[name].append(measured_load)
            step(
                f"round {number} of {repeats}: {name} {measured_load.requests_rps:.1f}/s, median {measured_load.median_ms:.0f} ms"
            )
    return found


def start_all(stack: contextlib.ExitStack, name: str) -> tuple[dict[str, Endpoint], dict[str, Program], str]:
    """Every system with every setting, serving; the programs of the peers, paused; and the engine that `auto` is."""
    folder = stack.enter_context(gnomon.temporary())
    repository = DirectoryRepository(gnomon.MODELS)
    entry = add_engines(repository, ensure_model(repository, name, progress=step), progress=step)
    report = read_report(entry.files[REPORT])
    onnx_file = exported(name)
    ours = stack.enter_context(gnomon.serving(options=("--cores", "1", "--pool", "0")))
    specs = entry.signature.inputs
    endpoints: dict[str, Endpoint] = {}
    programs: dict[str, Program] = {}
    for engine in (AUTO, PROGRAM):
        function = f"net-{engine}"
        annotations = {"gnomon/model": name, "gnomon/engine": engine, "gnomon/max-batch": str(BATCH)}
        document = {
            "service": function,
            "image": IMAGE_MODEL,
            "annotations": annotations,
            "labels": {"com.openfaas.scale.max": "1"},
        }
        ours.call("POST", "/system/functions", document)
        endpoint = tensor_endpoint(ours.url, function, specs[0].name)
        endpoint.wait_for_answer()
        endpoints[f"gnomon, {engine}"] = endpoint
    for peer in ("mosec", "litserve"):
        for engine in ("torch", "onnxruntime"):
            place = folder / f"{peer}-{engine}"
            served = peers.network(peer, name, place, engine=engine, onnx_file=onnx_file, body=IMAGE, batch=BATCH)
            endpoints[f"{peer}, {engine}"], programs[f"{peer}, {engine}"] = stack.enter_context(served)
            programs[f"{peer}, {engine}"].pause()
    return endpoints, programs, report.auto


def tensor_endpoint(url: str, function: str, tensor: str) -> Endpoint:
    """The open inference protocol, with the tensors as raw bytes behind the JSON."""
    document = {
        "inputs": [
            {"name": tensor, "shape": [1, 3, 224, 224], "datatype": "FP32", "parameters": {"binary_data_size": len(IMAGE)}}
        ],
        "parameters": {"binary_data_output": True},
    }
    head = json.dumps(document).encode()
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return Endpoint("gnomon", f"{url}/v2/models/{function}/infer", head + IMAGE, headers)


def exported(name: str) -> Path:
    """The network as a file for ONNX Runtime, made once as its documentation shows, with a dynamic batch."""
    import torch

    from benchmarks.peers.applications.networks import module

    path = gnomon.MODELS / "by-hand" / f"{name.replace(':', '-')}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        step(f"exporting {name} to ONNX")
        batch = torch.export.Dim("batch", min=1, max=64)
        torch.onnx.export(
            module(name), (torch.zeros(2, 3, 224, 224),), path, dynamo=True, dynamic_shapes=({0: batch},), verbose=False
        )
    return path


def figures_of(title: str, engine: str, found: dict[str, list[Load]]) -> list[Figure]:
    ours, goal = found["gnomon, auto"], GOALS[title]
    figures = [
        measured(
            f"{title}: auto of program",
            ratios(ours, found["gnomon, program"]),
            "×",
            at_least=goal,
            detail=f"auto is {engine}; {SETTINGS}",
        )
    ]
    for peer in ("mosec", "litserve"):
        for theirs, least in (("torch", goal), ("onnxruntime", 1.0)):
            peer_ratios = ratios(ours, found[f"{peer}, {theirs}"])
            figures.append(measured(f"{title}: auto of {peer} with {theirs}", peer_ratios, "×", at_least=least, detail=SETTINGS))
    figures += [
        measured(f"{title}: requests ({name})", rates(loads), "requests/s", detail=f"median {loads[-1].median_ms:.0f} ms")
        for name, loads in found.items()
    ]
    return figures


if __name__ == "__main__":
    start(main, __doc__)
