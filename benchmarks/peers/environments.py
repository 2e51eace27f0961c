"""The peers' Python environments, made with uv from pinned requirements, once.

    benchmarks/.environments/mosec/        and its requirements in benchmarks/peers/mosec.txt

PyTorch comes in the same build that Gnomon has. An environment whose requirements have changed is made anew.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

import uv

from benchmarks.programs import step

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE.parent / ".environments"
STAMP = ".made-from"


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is missing.

    Raises:
        subprocess.CalledProcessError: uv could not make it; it has said why.

    """
    requirements = HERE / f"{peer}.txt"
    folder = ENVIRONMENTS / peer
    python = folder / "bin" / "python"
    build = torch_build()
    digest = hashlib.sha256(f"{sys.version} {build} {requirements.read_text()}".encode()).hexdigest()
    stamp = folder / STAMP
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    step(f"making the environment of {peer} in {folder}: with PyTorch, up to 3 GB to download, seconds where uv has it already")
    shutil.rmtree(folder, ignore_errors=True)
    tool = uv.find_uv_bin()
    subprocess.run([tool, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder)], check=True)
    backend = ["--torch-backend", build] if build else []
    install = [tool, "pip", "install", "--quiet", "--python", str(python), "--compile-bytecode", *backend]
    subprocess.run([*install, "--requirements", str(requirements)], check=True)
    stamp.write_text(digest)
    return python


def torch_build() -> str:
    """`cpu` where ours is PyTorch's CPU build; empty for the default one."""
    return "cpu" if importlib.metadata.version("torch").endswith("+cpu") else ""
