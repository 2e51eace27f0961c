"""Container images without a registry and a daemon.

    Image            an archive as `docker save` writes it, with one layer, from files: the cluster's own programs
    archives, kept   our images from their Dockerfiles by Debian's buildah, kept under the digest of their sources

The same files give the same bytes: owners, times and order are set here. `ctr images import` and `docker load` read the result.
`FROM` names a base that is made here, of Debian's packages (deploy/images/debian). Wheels come from PyPI, by hash.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deploy.pack_templates import locked_build
from tests.cluster import requirements
from tests.cluster.machine import mounts
from tests.cluster.phases import CannotBeHad, Phases, Trouble
from tests.cluster.settings import HERE, Folders, image

# The user "nonroot" of the images that Knative publishes; pods that ask for `runAsNonRoot` need a number.
NOBODY = 65532
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """An image: `files` are paths in the image, without the leading slash, and the files or folders that go there."""

    reference: str
    files: Mapping[str, Path]
    entrypoint: Sequence[str]
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: int = NOBODY
    folder: str = "/"

    def write(self, archive: Path) -> Path:
        """The archive, whole or not at all."""
        archive.parent.mkdir(parents=True, exist_ok=True)
        partial, layer = archive.with_suffix(".part"), archive.with_suffix(".layer")
        try:
            with tarfile.open(layer, "w", format=tarfile.PAX_FORMAT) as tar:
                for name, source in sorted(self._sources()):
                    _add(tar, name, source)
            with layer.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            configuration = json.dumps(self._configuration(digest)).encode()
            name = f"{hashlib.sha256(configuration).hexdigest()}.json"
            manifest = [{"Config": name, "RepoTags": [self.reference], "Layers": [f"{digest}/layer.tar"]}]
            with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
                _add(tar, f"{digest}/layer.tar", layer)
                for entry, content in ((name, configuration), ("manifest.json", json.dumps(manifest).encode())):
                    header = tarfile.TarInfo(entry)
                    header.size = len(content)
                    tar.addfile(header, io.BytesIO(content))
            return partial.replace(archive)
        finally:
            layer.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)

    def _sources(self) -> Iterator[tuple[str, Path]]:
        """Each path in the image with what it is made from; folders with all that is in them."""
        for name, source in self.files.items():
            inside = name.strip("/")
            if inside:
                yield inside, source
            if source.is_dir() and not source.is_symlink():
                for path in source.rglob("*"):
                    yield str(Path(inside, path.relative_to(source))), path

    def _configuration(self, layer: str) -> dict[str, object]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {
                "Entrypoint": list(self.entrypoint),
                "Cmd": list(self.arguments),
                "Env": [f"{name}={value}" for name, value in {"PATH": path, **self.environment}.items()],
                "User": str(self.user),
                "WorkingDir": self.folder,
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        }


def _add(tar: tarfile.TarFile, name: str, source: Path) -> None:
    """A file, folder or link, of root, at the beginning of time. Sockets and devices are left out."""
    header = tar.gettarinfo(source, arcname=name)
    if header.islnk():  # another name of a file that is in the archive already, as uv makes them
        header.type, header.size = tarfile.REGTYPE, source.stat().st_size
    if not (header.isreg() or header.isdir() or header.issym()):
        return
    header.uid = header.gid = header.mtime = 0
    header.uname = header.gname = ""
    header.mode = stat.S_IMODE(header.mode)
    if header.isreg():
        with source.open("rb") as content:
            tar.addfile(header, content)
    else:
        tar.addfile(header)


ROOT = HERE.parents[1]
DEBIAN = ROOT / "deploy" / "images" / "debian"
SUITE, MIRROR = "trixie", "http://deb.debian.org/debian"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
CERTIFICATES = Path("/etc/ssl/certs")
UNNEEDED = (
    "var/cache/apt",
    "var/lib/apt/lists",
    "var/log",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/info",
    "usr/share/locale",
)


@dataclass(frozen=True)
class Recipe:
    """A folder with a Dockerfile; for a function, the template's, in which `handler` takes the place of the template's own.

    Of what is locked, packages whose names begin with one of `without` are left out. `arguments` are the build's.
    """

    context: Path
    handler: Path | None = None
    without: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


# torch, and what only it needs.
TORCH = ("torch", "triton", "nvidia-", "cuda-", "sympy", "mpmath", "networkx", "fsspec", "filelock", "setuptools", "safetensors")

RECIPES = {
    "gnomon-gateway": Recipe(ROOT / "deploy" / "images" / "gateway"),
    "gnomon-coordinator": Recipe(ROOT / "deploy" / "images" / "coordinator"),
    "gnomon-body": Recipe(ROOT / "templates" / "gnomon-body", ROOT / "functions" / "body"),
    "gnomon-shadow": Recipe(ROOT / "templates" / "gnomon-shadow", ROOT / "functions" / "shadow"),
    # An application of two small models, for tests.
    "gnomon-application": Recipe(ROOT / "templates" / "gnomon-application", HERE / "application"),
    # A handler without a model, for tests: the template's own Dockerfile, and a twentieth of a Body's size.
    "gnomon-echo": Recipe(
        ROOT / "templates" / "gnomon-body", HERE / "echo", without=TORCH, arguments=("--build-arg", "DEVICE=gpu")
    ),
}


@dataclass(frozen=True)
class Builder:
    """buildah with storage of its own below `folder`. Commands run in a chroot, as root, with the machine's network."""

    folder: Path

    def __call__(self, *arguments: str | Path) -> str:
        """Run it; its output, or Trouble with what it said last."""
        storage = ["--root", self.folder / "storage", "--runroot", self.folder / "run", "--storage-driver", "overlay"]
        command = ["buildah", *map(str, [*storage, *arguments])]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Trouble(f"buildah {arguments[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout

    def has(self, reference: str) -> bool:
        """True if an image is there."""
        with contextlib.suppress(Trouble):
            return bool(self("inspect", "--type", "image", "--format", "{{.FromImageID}}", reference))
        return False

    def build(self, context: Path, reference: str, *arguments: str) -> None:
        """An image from a folder's Dockerfile. Its layers are kept, so that only what has changed is made again."""
        everything = ["--isolation", "chroot", "--layers", "--timestamp", "0", "--tag", reference, *arguments]
        if CERTIFICATES.is_dir():
            # While it is built only: a company's proxy is known to the machine, and to no image.
            everything += ["--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro"]
        self("build", *everything, context)

    def forget(self, name: str, kept: str) -> None:
        """Remove the images of this name but for one. What they share with it stays."""
        for reference in self("images", "--format", "{{.Name}}:{{.Tag}}").splitlines():
            if reference.startswith(f"{name}:") and reference != kept:
                self("rmi", "--force", reference)

    def let_go(self) -> None:
        """Remove what builds that failed have begun, and unmount what buildah keeps mounted: nothing of it outlives a command."""
        with contextlib.suppress(Trouble):
            self("rm", "--all")
        for mounted in sorted((mount for mount in mounts() if Path(mount).is_relative_to(self.folder)), reverse=True):
            subprocess.run(["umount", mounted], check=False, capture_output=True)

    def archive(self, reference: str, name: str, target: Path) -> Path:
        """The image as an archive under another name, whole or not at all."""
        partial = target.with_suffix(".part")
        partial.unlink(missing_ok=True)
        self("push", reference, f"docker-archive:{partial}:{name}")
        return partial.replace(target)


def archives(folders: Folders, phases: Phases, names: list[str]) -> list[Path]:
    """The archives of our images, built if need be."""
    requirements.check_builder(phases)
    place = folders.cache / "images"
    with phases.alone(place / "building", "builds images"):
        with phases.phase("our wheel"):
            _pack()
        builder = Builder(place)
        try:
            base = _base(builder, phases)
            return [_build(builder, phases, name, base) for name in names]
        finally:
            builder.let_go()


def kept(folders: Folders, phases: Phases, name: str) -> Path | None:
    """An image's archive, if it was built from the sources as they are now. Nothing is built but our wheel."""
    place = folders.cache / "images"
    if not any(place.glob(f"{name}-*.tar")):
        return None
    with phases.alone(place / "building", "builds images"):
        _pack()
        archive = place / f"{name}-{_key(name)}.tar"
    return archive if archive.exists() else None


def digest(folder: Path) -> str:
    """Of every file below a folder, through links: name, mode and content."""
    parts = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            with path.open("rb") as content:
                inside = hashlib.file_digest(content, "sha256").hexdigest()
            parts.update(f"{path.relative_to(folder)} {stat.S_IMODE(path.stat().st_mode):o} {inside}\n".encode())
    return parts.hexdigest()[:12]


@contextlib.contextmanager
def assembled(recipe: Recipe) -> Iterator[Path]:
    """The context as faas-cli would make it: no links, and the handler in place."""
    with tempfile.TemporaryDirectory(prefix="gnomon-image-") as folder:
        context = Path(folder, "context")
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(recipe.context, context, symlinks=False, ignore=unwanted)
        if recipe.handler is not None:
            shutil.copytree(recipe.handler, context / "function", dirs_exist_ok=True, ignore=unwanted)
            for test in (context / "function").glob("*_test.py"):
                # The template's own test is of the template's handler.
                if not (recipe.handler / test.name).exists():
                    test.unlink()
        if recipe.without:
            lock = context / "requirements.txt"
            lock.write_text(lock_without(lock.read_text(), recipe.without))
        yield context


def lock_without(lock: str, beginnings: tuple[str, ...]) -> str:
    """A lock less the packages whose names begin so. A package is a line and the indented ones below it."""
    kept: list[str] = []
    taken = True
    for line in lock.splitlines(keepends=True):
        if not line[0].isspace():
            taken = not line.startswith(beginnings)
        if taken:
            kept.append(line)
    return "".join(kept)


def _pack() -> None:
    """`make templates`, with the build of torch that is locked already: a test asks no index which one there is."""
    command: list[str | Path] = [sys.executable, ROOT / "deploy" / "pack_templates.py"]
    chosen = {**os.environ, "TORCH": os.environ.get("TORCH") or locked_build() or "default"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=chosen)
    if done.returncode:
        raise Trouble(f"make templates failed: {done.stderr.strip()[-1000:]}")


def _base_key() -> str:
    """A digest of all that the base is made of."""
    return hashlib.sha256("\0".join([SUITE, *PACKAGES, *UNNEEDED, digest(DEBIAN)]).encode()).hexdigest()[:12]


def _key(name: str) -> str:
    """A digest of all that an image is made of: its base and its context."""
    with assembled(RECIPES[name]) as context:
        return f"{_base_key()}-{digest(context)}"


def _base(builder: Builder, phases: Phases) -> str:
    """The base's name; made of Debian's packages, once."""
    reference = f"localhost/gnomon-python:{_base_key()}"
    if builder.has(reference):
        return reference
    with phases.phase("base image"), tempfile.TemporaryDirectory(prefix="base-", dir=builder.folder) as folder:
        root = Path(folder, "root")
        made = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}", SUITE, str(root), MIRROR]
        done = subprocess.run(made, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBeHad(f"debootstrap could not make a base of Debian's packages: {done.stdout.strip()[-300:]}")
        for name in UNNEEDED:
            for path in (root / name).glob("*"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        context = shutil.copytree(DEBIAN, Path(folder, "context"))
        subprocess.run(["tar", "--directory", root, "--sort=name", "-cf", context / "root.tar", "."], check=True)
        builder.build(context, reference)
    return reference


def _build(builder: Builder, phases: Phases, name: str, base: str) -> Path:
    """Build one image's archive."""
    archive = builder.folder / f"{name}-{_key(name)}.tar"
    if archive.exists():
        return archive
    reference = _image(builder, phases, name, base)
    builder.archive(reference, image(name), archive)
    builder.forget(f"localhost/{name}", reference)
    for old in builder.folder.glob(f"{name}-*.tar"):
        if old != archive:
            old.unlink()
    return archive


def _image(builder: Builder, phases: Phases, name: str, base: str) -> str:
    """An image's name in the builder's storage, built if need be."""
    recipe, reference = RECIPES[name], f"localhost/{name}:{_key(name)}"
    if not builder.has(reference):
        with phases.phase(name), assembled(recipe) as context:
            builder.build(context, reference, "--build-arg", f"PYTHON_IMAGE={base}", *recipe.arguments)
    return reference
