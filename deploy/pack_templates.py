"""`make templates`: puts what templates/gnomon-body needs into it, so that the template is self-contained.

templates/gnomon-shadow has links to the same files: the two images differ in their handler alone.

    gnomon-VERSION-py3-none-any.whl     this repository as a wheel, not kept in git
    requirements.txt                    what it needs in an image, every version with its hashes, and no address of any index

The lock is made again only when what it comes from has changed; its first line says from what. `TORCH=cpu` locks torch's CPU
build, from `TORCH_CPU_INDEX`; the image is then built with `--build-arg TORCH_INDEX=…`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "templates" / "gnomon-body"
SHADOW = ROOT / "templates" / "gnomon-shadow"
LOCK = TEMPLATE / "requirements.txt"
PROJECT = ROOT / "pyproject.toml"
CONSTRAINTS = ROOT / "constraints.txt"
PYTHON_OF_THE_IMAGE = "3.12"


def pack_wheel() -> Path:
    """Build the wheel and let it replace an older one."""
    with tempfile.TemporaryDirectory(dir=TEMPLATE) as folder:
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (built,) = Path(folder).glob("gnomon-*.whl")
        for old in TEMPLATE.glob("gnomon-*.whl"):
            old.unlink()
        for old in SHADOW.glob("gnomon-*.whl"):
            old.unlink()
        (SHADOW / built.name).symlink_to(Path("..", TEMPLATE.name, built.name))
        return built.rename(TEMPLATE / built.name)


def origin(environment: Mapping[str, str]) -> str:
    """The line that says what a lock was made from."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["body"]]
    digest = hashlib.sha256("\n".join([*wanted, CONSTRAINTS.read_text()]).encode()).hexdigest()
    return f"# torch: {torch_build(environment)}; dependencies and constraints.txt: sha256 {digest}\n"


def torch_build(environment: Mapping[str, str]) -> str:
    """Which build of torch is locked."""
    return "cpu" if environment.get("TORCH") == "cpu" else "default"


def lock(environment: Mapping[str, str]) -> str:
    """What an image needs, resolved to the versions that are tested together."""
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--generate-hashes",
        "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--python-version", PYTHON_OF_THE_IMAGE,
        "--extra", "body", "--constraints", str(CONSTRAINTS), str(PROJECT),
    ]  # fmt: skip
    if torch_build(environment) == "cpu":
        command += ["--extra-index-url", environment["TORCH_CPU_INDEX"], "--index-strategy", "unsafe-best-match"]
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    """Pack."""
    wheel = pack_wheel()
    first = origin(os.environ)
    if not LOCK.exists() or not LOCK.read_text().startswith(first):
        LOCK.write_text(first + lock(os.environ))
    sys.stdout.write(f"{TEMPLATE.relative_to(ROOT)}: {wheel.name} and {LOCK.name}. Build images with faas-cli build.\n")


if __name__ == "__main__":
    main()
