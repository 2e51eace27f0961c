"""The wheel, installed with one extra at a time: each part imports with what its extra brings, and with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
UV = Path(sys.executable).parent / "uv"
# Imports every module of the named packages but those whose names begin with one of the others.
IMPORT_ALL = """
import importlib, pkgutil, sys
wanted, left_out = sys.argv[1].split(","), tuple(sys.argv[2].split(",")) if sys.argv[2] else ()
count = 0
for name in wanted:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        if not module.name.endswith("__main__") and not (left_out and module.name.startswith(left_out)):
            importlib.import_module(module.name)
            count += 1
assert count > 3, count
"""
INTEGER_PROGRAMS = ["gnomon_autoscaler.policies.infaas.exact"]
PARTS = {
    # What the wheel brings without an extra is enough for the command line and every policy but those that plan or replay: they
    # say so.
    "": (
        ["gnomon_core", "gnomon_cli", "gnomon_autoscaler", "gnomon_coordinator"],
        # What serves needs the gateway's extra and says so; a node's coordinator needs its own.
        [
            "gnomon_autoscaler.policies.batch",
            "gnomon_autoscaler.policies.gnomon",
            # The integer programs of variants need scipy; the heuristic does not.
            *INTEGER_PROGRAMS,
            "gnomon_coordinator.node",
            "gnomon_cli.measure_lambda",
        ],
    ),
    "gateway": (
        ["gnomon_gateway", "gnomon_platforms", "gnomon_autoscaler", "gnomon_server", "gnomon_cli"],
        # AWS Lambda needs boto3 and Kubernetes its client, and they say so.
        [
            *INTEGER_PROGRAMS,
            "gnomon_platforms.aws_lambda",
            "gnomon_platforms.kubernetes",
            "gnomon_platforms.knative",
            "gnomon_platforms.openfaas",
            "gnomon_cli.measure_lambda",
        ],
    ),
    "lambda": (["gnomon_platforms.aws_lambda"], []),
    "kubernetes": (["gnomon_platforms.kubernetes", "gnomon_platforms.openfaas", "gnomon_platforms.knative"], []),
    "node": (["gnomon_coordinator"], []),
    "replay": (["gnomon_simulator"], []),
    "planner": (["gnomon_planner", "gnomon_autoscaler"], INTEGER_PROGRAMS),
    "infaas": (["gnomon_autoscaler.policies.infaas"], []),
    # Engines are extras of their own.
    "body": (["gnomon_runtime"], [f"gnomon_runtime.engine.{engine}_graph" for engine in ("onnx", "openvino")]),
    "onnxruntime": (["gnomon_runtime"], ["gnomon_runtime.engine.openvino_graph"]),
    "openvino": (["gnomon_runtime"], ["gnomon_runtime.engine.onnx_graph"]),
}


def run(*command: str | Path, **environment: str) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(UV, "build", "--wheel", "--quiet", "--out-dir", folder, ROOT)
    (built,) = folder.glob("gnomon-*.whl")
    return built


@pytest.mark.timeout(600)
@pytest.mark.parametrize("extra", PARTS)
def test_a_part_needs_only_its_own_extra(extra: str, wheel: Path, tmp_path: Path) -> None:
    packages, left_out = PARTS[extra]
    python = tmp_path / "environment" / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "environment")
    requirement = f"gnomon[{extra}] @ file://{wheel}" if extra else f"gnomon @ file://{wheel}"
    certificates = os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    known = {"SSL_CERT_FILE": certificates} if Path(certificates).exists() else {}
    run(UV, "pip", "install", "--quiet", "--python", python, "-c", ROOT / "constraints.txt", requirement, **known)
    run(python, "-I", "-W", "error::SyntaxWarning", "-c", IMPORT_ALL, ",".join(packages), ",".join(left_out))


@pytest.mark.timeout(600)
def test_without_the_gateway_extra_serve_says_what_to_install(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "environment" / "bin" / "python"
    run(UV, "venv", "--quiet", "--python", sys.executable, tmp_path / "environment")
    run(UV, "pip", "install", "--quiet", "--python", python, "-c", ROOT / "constraints.txt", f"gnomon @ file://{wheel}")
    result = subprocess.run(
        [python.parent / "gnomon", "serve", "--state", tmp_path / "state"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "In a clone of Gnomon, in the environment that runs it: pip install '.[" in result.stderr
    assert "Traceback" not in result.stderr
