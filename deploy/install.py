"""Makes `.venv` from the constraints, and says beforehand what that costs.

Run by the Makefile with the system's Python; needs nothing but the standard library. Quick when nothing changed: a stamp in the
environment holds the digest of everything that decides its content.

Environment variables: TORCH=cpu|default chooses PyTorch's build (unset: the CPU build where its index can be reached),
TORCH_CPU_INDEX is that index.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv"
STAMP = ENVIRONMENT / ".gnomon-installed"
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
# Measured: bytes that travel, and bytes on disk, for PyTorch with everything else.
SIZES_GB = {"cpu": (0.5, 1.6), "default": (2.9, 5.8)}


def main() -> int:
    """Make or renew the environment; 0 when it is ready."""
    if sys.version_info < (3, 11):  # noqa: UP036 - the system's Python may be older than the project allows
        return fail(f"Python 3.11 or newer is needed; this is {sys.version.split()[0]}. Set PYTHON=/path/to/python3.11.")
    choice = os.environ.get("TORCH", "")
    if choice not in ("", "cpu", "default"):
        return fail(f"TORCH is {choice!r}; it must be cpu or default.")
    digest = wanted_digest(choice)
    if STAMP.exists() and STAMP.read_text() == digest:
        return 0
    build = choice or ("cpu" if cpu_index_answers() else "default")
    download_gb, disk_gb = SIZES_GB[build]
    free_gb = shutil.disk_usage(ROOT).free / 1e9
    if STAMP.exists():
        print(f"Renewing {ENVIRONMENT}: what it is made from has changed.", flush=True)
    elif free_gb < disk_gb:
        return fail(f"{disk_gb} GB of disk are needed in {ROOT}, {free_gb:.1f} are free. TORCH=cpu needs less.")
    else:
        print(f"Installing into {ENVIRONMENT}: PyTorch's {build} build, {download_gb} GB to download, {disk_gb} GB on disk.")
        print("TORCH=cpu or TORCH=default chooses the other build.", flush=True)
    try:
        install(build)
    except subprocess.CalledProcessError as error:
        return fail(f"{' '.join(map(str, error.cmd[:4]))} … failed with {error.returncode}; its message is above.")
    STAMP.write_text(digest)
    return 0


def wanted_digest(choice: str) -> str:
    """The digest of everything that the environment is made from."""
    parts = [choice, sys.version, str(ROOT), (ROOT / "pyproject.toml").read_text(), (ROOT / "constraints.txt").read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def cpu_index_answers() -> bool:
    """Whether PyTorch's CPU index can be reached from here."""
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=5) as answer:  # noqa: S310 - the operator's own address
            return bool(answer.status == 200)  # noqa: PLR2004
    except (urllib.error.URLError, OSError, ValueError):
        return False


def install(build: str) -> None:
    """The environment, uv in it, and through uv everything else."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)])
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, "-c", str(ROOT / "constraints.txt"), "uv"])
    index = ["--index-strategy", "unsafe-best-match", "--extra-index-url", CPU_INDEX] if build == "cpu" else []
    run(
        [
            str(ENVIRONMENT / "bin" / "uv"),
            "pip",
            "install",
            "--python",
            str(python),
            "--constraint",
            str(ROOT / "constraints.txt"),
            *index,
            "--editable",
            f"{ROOT}[dev]",
        ]
    )


def run(command: list[str]) -> None:
    """Run a command in view of the user. uv shows its own progress."""
    environment = dict(os.environ)
    # uv trusts its own certificates unless told of the system's; a company's proxy is known to the system only.
    if Path("/etc/ssl/certs/ca-certificates.crt").exists():
        environment.setdefault("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    subprocess.run(command, check=True, env=environment)


def fail(message: str) -> int:
    """Print one line and exit."""
    print(f"gnomon: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
