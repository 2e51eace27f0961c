"""`make templates`: puts what images need beside their Dockerfiles, so that each folder is a context of its own.

    templates/gnomon-body, gnomon-shadow        functions; the second has links to the first's: they differ in their handler alone
    deploy/images/gateway, coordinator          our own programs

    gnomon-VERSION-py3-none-any.whl     this repository as a wheel, not kept in git
    requirements.txt                    what it needs in that image, every version with its hashes, and no address of any index

A lock is made again only when what it comes from has changed; its first line says from what. `TORCH=cpu` locks torch's CPU build,
from `TORCH_CPU_INDEX`; the image is then built with `--build-arg TORCH_INDEX=…`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "templates" / "gnomon-body"
SHADOW = ROOT / "templates" / "gnomon-shadow"
IMAGES = ROOT / "deploy" / "images"
PROJECT = ROOT / "pyproject.toml"
CONSTRAINTS = ROOT / "constraints.txt"
PYTHON_OF_THE_IMAGE = "3.12"


@dataclass(frozen=True)
class Context:
    """An image's folder, and what our wheel needs in it: these `extras`, less what is `left_out`."""

    folder: Path
    extras: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def lock(self) -> Path:
        return self.folder / "requirements.txt"


# Models may be in S3, for which there is boto3.
BODY = Context(TEMPLATE, ("body", "lambda"))
CONTEXTS = (
    BODY,
    # Handlers are built into images by others: what builds them on one machine stays out of this one.
    Context(IMAGES / "gateway", ("gateway", "kubernetes", "lambda"), left_out=("uv",)),
    Context(IMAGES / "coordinator", ("node",)),
)


def pack_wheel() -> Path:
    """Build the wheel and let it replace an older one everywhere."""
    with tempfile.TemporaryDirectory(dir=TEMPLATE) as folder:
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (built,) = Path(folder).glob("gnomon-*.whl")
        for place in (SHADOW, *(context.folder for context in CONTEXTS)):
            for old in place.glob("gnomon-*.whl"):
                old.unlink()
        (SHADOW / built.name).symlink_to(Path("..", TEMPLATE.name, built.name))
        for context in CONTEXTS:
            shutil.copyfile(built, context.folder / built.name)
        return TEMPLATE / built.name


def wanted(context: Context) -> list[str]:
    """What an image's lock is to meet."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    named = [one for extra in context.extras for one in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *named]


def origin(context: Context, environment: Mapping[str, str]) -> str:
    """The line that says what a lock was made from."""
    digest = hashlib.sha256("\n".join([*wanted(context), CONSTRAINTS.read_text()]).encode()).hexdigest()
    build = f"torch: {torch_build(environment)}; " if context is BODY else ""
    return f"# {build}dependencies and constraints.txt: sha256 {digest}\n"


def torch_build(environment: Mapping[str, str]) -> str:
    """Which build of torch is locked."""
    return "cpu" if environment.get("TORCH") == "cpu" else "default"


def lock(context: Context, environment: Mapping[str, str]) -> str:
    """What an image needs, resolved to the versions that are tested together."""
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--generate-hashes",
        "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--python-version", PYTHON_OF_THE_IMAGE,
        "--constraints", str(CONSTRAINTS), *(word for name in context.left_out for word in ("--no-emit-package", name)), "-",
    ]  # fmt: skip
    if torch_build(environment) == "cpu":
        command += ["--extra-index-url", environment["TORCH_CPU_INDEX"], "--index-strategy", "unsafe-best-match"]
    given = "\n".join(wanted(context))
    return subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, input=given).stdout


def main() -> None:
    """Pack."""
    wheel = pack_wheel()
    for context in CONTEXTS:
        first = origin(context, os.environ)
        if not context.lock.exists() or not context.lock.read_text().startswith(first):
            context.lock.write_text(first + lock(context, os.environ))
        sys.stdout.write(f"{context.folder.relative_to(ROOT)}: {wheel.name} and {context.lock.name}.\n")


if __name__ == "__main__":
    main()
