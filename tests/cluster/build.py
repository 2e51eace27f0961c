"""Compiles the cluster's programs from Go modules, once: about seven minutes of two cores, 1.5 GB of downloads.

The result is kept in a folder named by the digest of everything that decides it, with the manifests that the same modules
contain, so that a boot needs neither Go nor a network. A run that is ended halfway is continued by the next one: Go keeps what it
has compiled. `nice` and GOFLAGS=-p=1 make it a quiet neighbour.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import requirements
from tests.cluster.phases import CannotBeHad, Phases, Trouble
from tests.cluster.settings import HERE, Folders

SOURCES = HERE / "programs"
KWOK_SOURCES = HERE / "kwok"
HELM_SOURCES = HERE / "helm"
DONE = "complete"

# Module → its folders that hold manifests. Several of serving's are links to the other two, which a module cannot contain.
MANIFESTS = {
    "knative.dev/serving": "config/core",
    "knative.dev/networking": "config",
    "knative.dev/caching": "config",
}
KWOK_MANIFESTS = {"sigs.k8s.io/kwok": "kustomize/stage"}

# With empty caches.
MINUTES = {"programs": "seven minutes", "kwok": "one minute more", "helm": "one minute more"}

# How Go words that it could not get something, as opposed to that something does not compile.
REFUSED = re.compile(
    r"403 Forbidden|404 Not Found|Bad Gateway|Service Unavailable|dial tcp|i/o timeout|no such host|connection re(fused|set)"
    r"|TLS handshake|proxyconnect"
)
# What a debugger reads is left out by the linker: not to make it saves a fifth of the time, and a quarter of Go's cache. Nothing
# in the programs is changed by it, so that it is no part of their digest.
NO_DEBUGGER = "-gcflags=all=-dwarf=false"
PROBED = "knative.dev/serving"
PROBE_LIMIT_S = 90.0


@dataclass(frozen=True)
class Programs:
    """The compiled programs: `folder` holds the programs, `manifests` the modules' manifests by the last part of their names."""

    folder: Path

    @property
    def manifests(self) -> Path:
        return self.folder / "manifests"


def version(module: str) -> str:
    """The one that go.mod pins."""
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", (SOURCES / "go.mod").read_text(), re.MULTILINE)
    if not found:
        raise Trouble(f"{SOURCES}/go.mod does not name {module}.")
    return found[1]


def linker_flags() -> str:
    """No symbols; and the version, without which Knative's check of Kubernetes' minimum fails."""
    kubernetes = version("k8s.io/kubernetes")
    major, minor = kubernetes.removeprefix("v").split(".")[:2]
    short = {"gitVersion": kubernetes, "gitMajor": major, "gitMinor": minor}
    more = {**short, "gitTreeState": "clean", "gitCommit": "unknown", "buildDate": "1970-01-01T00:00:00Z"}
    names = [f"-X k8s.io/component-base/version.{name}={value}" for name, value in more.items()]
    names += [f"-X k8s.io/client-go/pkg/version.{name}={value}" for name, value in short.items()]
    return " ".join(["-s -w", *names])


def digest(sources: Path) -> str:
    """Of everything that decides what is compiled."""
    parts = [linker_flags()]
    for path in sorted(sources.rglob("*")):
        if path.suffix == ".go" or path.name in ("go.mod", "go.sum"):
            parts += [str(path.relative_to(sources)), path.read_text()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def kept(folders: Folders, sources: Path = SOURCES) -> Programs | None:
    """The programs that were compiled before, if they are of the same sources."""
    folder = folders.cache / sources.name / digest(sources)
    return Programs(folder) if (folder / DONE).exists() else None


def check(folders: Folders) -> None:
    """Refuse where the cluster's programs neither are kept nor can be compiled, before anything is installed for them.

    One module is asked for: a proxy that cannot be reached would else be waited for once for each of a thousand.
    """
    if kept(folders):
        return
    requirements.check_go()
    requirements.check_disk_space(folders.cache, requirements.BUILD_GB)
    go(SOURCES, ["mod", "download", PROBED], limit_s=PROBE_LIMIT_S)


def programs(folders: Folders, phases: Phases) -> Programs:
    """The cluster's programs, compiled if need be."""
    return _alone(folders, phases, SOURCES, MANIFESTS)


def kwok(folders: Folders, phases: Phases) -> Programs:
    """kwok, likewise."""
    return _alone(folders, phases, KWOK_SOURCES, KWOK_MANIFESTS)


def helm(folders: Folders, phases: Phases) -> Programs:
    """helm, which tests compare the chart by."""
    return _alone(folders, phases, HELM_SOURCES, {})


def _alone(folders: Folders, phases: Phases, sources: Path, manifests: dict[str, str]) -> Programs:
    """The kept programs; else compile them while nobody else does."""
    if found := kept(folders, sources):
        return found
    with phases.alone(folders.cache / "compiling", "compiles"):
        return kept(folders, sources) or _compile(folders, phases, sources, manifests)


def _compile(folders: Folders, phases: Phases, sources: Path, manifests: dict[str, str]) -> Programs:
    requirements.check_go()
    requirements.check_disk_space(folders.cache, requirements.BUILD_GB)
    everything = folders.cache / sources.name
    target = everything / digest(sources)
    target.mkdir(parents=True, exist_ok=True)
    phases.say(
        f"           compiling {sources.name} into {target}: once, about {MINUTES[sources.name]} of two cores from nothing"
    )
    with phases.phase(f"modules of {sources.name}"):
        go(sources, ["list", "-deps", "tool", "./..."])
    with phases.phase(f"compiling {sources.name}"):
        flags = ["-trimpath", "-buildvcs=false", NO_DEBUGGER, "-ldflags", linker_flags()]
        go(sources, ["build", *flags, "-o", f"{target}/", "tool", "./..."])
    for module, folder in manifests.items():
        place = Path(go(sources, ["list", "-m", "-f", "{{.Dir}}", module]).strip())
        copy = target / "manifests" / module.rpartition("/")[2]
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place / folder, copy, copy_function=shutil.copyfile)
        for path in [copy, *copy.rglob("*")]:  # modules are read-only, which would keep us from removing the copy
            path.chmod(0o755 if path.is_dir() else 0o644)
    (target / DONE).touch()
    for other in everything.iterdir():
        if other != target:
            shutil.rmtree(other)
    return Programs(target)


def go(sources: Path, arguments: list[str], limit_s: float | None = None) -> str:
    """Go without C, so that programs run in empty images."""
    try:
        done = subprocess.run(
            ["env", "CGO_ENABLED=0", "go", *arguments],
            cwd=sources,
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotBeHad(f"the Go proxy did not give {arguments[-1]} within {limit_s:.0f} s") from error
    if done.returncode:
        reason = "\n".join(done.stderr.strip().splitlines()[-5:])
        if REFUSED.search(done.stderr):
            raise CannotBeHad(f"the Go proxy does not give what is needed:\n{reason}")
        raise Trouble(f"go {arguments[0]} failed in {sources}:\n{reason}")
    return done.stdout
