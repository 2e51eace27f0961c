"""`make templates`: puts what images need beside their Dockerfiles, so that each folder is a context of its own.

    templates/gnomon-body, …                    functions; the others have links to the first's: they differ in `function` alone
    deploy/images/gateway, coordinator          our own programs

    gnomon-VERSION-py3-none-any.whl     this repository as a wheel, not kept in git
    requirements.txt                    what it needs in that image, every version with its hashes, and where torch's CPU build is

A lock is made again only when what it comes from has changed; its first line says from what. A Body's has torch's CPU build
where PyTorch's index of it can be reached, as `.venv` has (`install.py`); `TORCH=cpu` and `TORCH=default` choose one. What
comes from an index of one's own, `TORCH_CPU_INDEX`, is built with `--build-arg TORCH_INDEX=…`: its address is written nowhere.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# It is run as a file, too.
sys.path.insert(0, str(ROOT))

from deploy.install import cpu_index_answers  # noqa: E402 - found by the line above

PUBLIC_INDEX = "https://download.pytorch.org/whl/cpu"
TEMPLATE = ROOT / "templates" / "gnomon-body"
LIKE_A_BODY = (ROOT / "templates" / "gnomon-shadow", ROOT / "templates" / "gnomon-application")
"""Templates of the same image."""
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


# Models may be in S3, for which there is boto3; an application's container has a gateway of its own. Handlers are built into
# images by others: what builds them on one machine stays out.
BODY = Context(TEMPLATE, ("body", "gateway", "lambda"), left_out=("uv",))
CONTEXTS = (
    BODY,
    Context(IMAGES / "gateway", ("gateway", "kubernetes", "lambda"), left_out=("uv",)),
    Context(IMAGES / "coordinator", ("node",)),
)


def pack_wheel() -> Path:
    """Build the wheel and let it replace an older one everywhere."""
    # The wheel has the templates in it: one that lay there would be packed twice, and each wheel be twice as large as the last.
    for place in (*LIKE_A_BODY, *(context.folder for context in CONTEXTS)):
        for old in place.glob("gnomon-*.whl"):
            old.unlink()
    with tempfile.TemporaryDirectory() as folder:
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (built,) = Path(folder).glob("gnomon-*.whl")
        with zipfile.ZipFile(built) as packed:
            if inside := [name for name in packed.namelist() if name.endswith(".whl")]:
                raise SystemExit(f"{built.name} has wheels in it: {', '.join(inside)}")
        for like_it in LIKE_A_BODY:
            (like_it / built.name).symlink_to(Path("..", TEMPLATE.name, built.name))
        for context in CONTEXTS:
            shutil.copyfile(built, context.folder / built.name)
        return TEMPLATE / built.name


def wanted(context: Context) -> list[str]:
    """The requirements of an image's lock."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    named = [requirement for extra in context.extras for requirement in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *named]


def origin(context: Context, environment: Mapping[str, str]) -> str:
    """The line that says what a lock was made from."""
    digest = hashlib.sha256("\n".join([*wanted(context), CONSTRAINTS.read_text()]).encode()).hexdigest()
    build = f"torch: {torch_build(environment)}; " if context is BODY else ""
    return f"# {build}dependencies and constraints.txt: sha256 {digest}\n"


def torch_build(environment: Mapping[str, str]) -> str:
    """The build of torch to lock: $TORCH, else the CPU's if its index answers."""
    return environment.get("TORCH") or ("cpu" if cpu_index_answers() else "default")


def locked_build() -> str:
    """The build of torch in the existing lock; "" without a lock."""
    found = re.match(r"# torch: (\w+);", BODY.lock.read_text()) if BODY.lock.exists() else None
    return found[1] if found else ""


def lock(context: Context, environment: Mapping[str, str]) -> str:
    """The requirements of an image, resolved to the versions that are tested together."""
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "compile", "--quiet", "--universal", "--generate-hashes",
        "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--python-version", PYTHON_OF_THE_IMAGE,
        "--constraints", str(CONSTRAINTS), *(word for name in context.left_out for word in ("--no-emit-package", name)), "-",
    ]  # fmt: skip
    index = environment.get("TORCH_CPU_INDEX") or PUBLIC_INDEX
    from_there = context is BODY and environment.get("TORCH") == "cpu"
    if from_there:
        command += ["--extra-index-url", index, "--index-strategy", "unsafe-best-match"]
    given = "\n".join(wanted(context))
    locked = subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, input=given).stdout
    # Whoever builds the image is not told of ours otherwise; hashes hold whatever an index says.
    return f"--extra-index-url {index}\n{locked}" if from_there and index == PUBLIC_INDEX else locked


def main() -> None:
    """Pack."""
    wheel = pack_wheel()
    chosen = {**os.environ, "TORCH": torch_build(os.environ)}
    for context in CONTEXTS:
        first = origin(context, chosen)
        if not context.lock.exists() or not context.lock.read_text().startswith(first):
            context.lock.write_text(first + lock(context, chosen))
        sys.stdout.write(f"{context.folder.relative_to(ROOT)}: {wheel.name} and {context.lock.name}.\n")


if __name__ == "__main__":
    main()
