"""The commands: up, down, run, build, image, pack, load, status.

`run` ends with the command's status. Where no cluster can be had it says why and ends with 0, because then there is nothing to
test here; `up` and `build` end with 3 instead.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

import tests.cluster
from tests.cluster import build, cluster, images, requirements
from tests.cluster.images import Image
from tests.cluster.phases import CANNOT_BE_HAD, CannotBeHad, Phases, Trouble
from tests.cluster.settings import folders

TERMINATE_LIMIT_S = 30.0
"""How long a command may take to end after SIGTERM."""


def main() -> int:
    """Parse and execute one command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cluster",
        description=tests.cluster.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("up", help="boot the cluster, compiling it first if need be")
    commands.add_parser("down", help="end it and remove what it made")
    commands.add_parser("build", help="compile only; needs no root")
    commands.add_parser("status", help="say whether one runs, or what the machine lacks for one")
    commands.add_parser("load", help="make images known to the running cluster").add_argument("archives", nargs="+", type=Path)
    image = commands.add_parser("image", help="build our images from their Dockerfiles; needs root, and PyPI for the first time")
    image.add_argument("names", nargs="+", choices=sorted(images.RECIPES))
    image.add_argument("--load", action="store_true", help="make them known to the running cluster")
    pack = commands.add_parser(
        "pack", help="write the archive of an image from a folder: pack ARCHIVE REFERENCE FOLDER ENTRYPOINT …"
    )
    pack.add_argument("archive", type=Path)
    pack.add_argument("reference")
    pack.add_argument("folder", type=Path)
    pack.add_argument("entrypoint", nargs=argparse.REMAINDER)
    commands.add_parser("run", help="run a command with GNOMON_TEST_KUBECONFIG set").add_argument(
        "words", nargs=argparse.REMAINDER
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, told_to_end)
    try:
        return carry_out(options)
    except CannotBeHad as reason:
        print(f"gnomon: no cluster can be had here: {reason}.", file=sys.stderr)
        return 0 if options.command == "run" else CANNOT_BE_HAD
    except Trouble as trouble:
        print(f"gnomon: {trouble}", file=sys.stderr)
        return 1


def told_to_end(number: int, _: FrameType | None) -> NoReturn:
    """End what was begun: the cluster, too. Who is told twice, by `timeout` and by make, does not break that off."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def carry_out(options: argparse.Namespace) -> int:
    """Execute the command; its exit status."""
    match options.command:
        case "load":
            return load(options.archives)
        case "pack":
            Image(options.reference, {"": options.folder}, options.entrypoint).write(options.archive)
            return 0
        case "image":
            return make_images(options.names, known=options.load)
        case "run":
            return run(options.words)
    plain = {"up": up, "down": down, "build": compile_only, "status": status}
    return plain[options.command]()


def up() -> int:
    """Boot, and say how to reach it."""
    phases = Phases()
    with cluster.alone(folders(), phases):
        running = cluster.up(folders(), phases)
    if phases.took_s:
        phases.total("in all")
    print(f"export KUBECONFIG={running.folders.kubeconfig}\nkubectl: {running.compiled.folder / 'kubectl'}")
    return 0


def down() -> int:
    """End."""
    phases = Phases()
    with cluster.alone(folders(), phases):
        cluster.end(folders(), phases)
    return 0


def compile_only() -> int:
    """The cluster's programs, kwok and helm."""
    phases = Phases()
    build.check(folders())
    print(build.programs(folders(), phases).folder)
    print(build.kwok(folders(), phases).folder)
    print(build.helm(folders(), phases).folder)
    return 0


def compile_for_some(phases: Phases) -> None:
    """Compile kwok and helm, which only some tests use; those are skipped without them."""
    for compiled in (build.kwok, build.helm):
        try:
            compiled(folders(), phases)
        except CannotBeHad as reason:
            phases.say(f"           left out: {reason}")


def make_images(names: list[str], *, known: bool) -> int:
    """Our images, built if need be; where `known`, to the cluster that runs."""
    made = images.archives(folders(), Phases(), names)
    print(sizes(made))
    return load(made) if known else 0


def sizes(archives: list[Path]) -> str:
    """Each with its size, which is what a registry and a node have of it before it is packed."""
    return "\n".join(f"{archive}: {archive.stat().st_size / 1e6:.0f} MB" for archive in archives)


def load(archives: list[Path]) -> int:
    """Images for the cluster that runs."""
    running = cluster.runs(folders())
    if not running:
        raise Trouble("no cluster runs: make cluster")
    for archive in archives:
        running.node.import_image(archive.resolve())
    return 0


def status() -> int:
    """Print whether the cluster runs, or what it lacks here."""
    running = cluster.runs(folders())
    if not running:
        requirements.check_node(folders())
        lacking = requirements.packages()
        print(f"none runs; {'everything is installed' if not lacking else f'to be installed: {chr(32).join(lacking)}'}")
        return 1
    print(running.kubectl("get", "pods", "--all-namespaces", "-o", "wide"), end="")
    return 0


def run(words: list[str]) -> int:
    """A command against a cluster. SIGINT ends the command, and then the cluster."""
    command = words[1:] if words[:1] == ["--"] else words
    phases = Phases()
    with cluster.borrowed(folders(), phases) as kubeconfig:
        if "KUBECONFIG" not in os.environ:
            compile_for_some(phases)
        process = subprocess.Popen(command, env={**os.environ, "GNOMON_TEST_KUBECONFIG": str(kubeconfig)})
        try:
            return process.wait()
        except BaseException:
            # Ctrl-C has reached the command as well; a SIGTERM has not.
            process.terminate()
            try:
                process.wait(TERMINATE_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise


if __name__ == "__main__":
    sys.exit(main())
