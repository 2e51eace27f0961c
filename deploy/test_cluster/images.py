"""Container images without a registry: an archive as `docker save` writes it, with one layer, from files.

    python -m deploy.test_cluster.images ARCHIVE REFERENCE FOLDER [--entrypoint /usr/bin/python3 …] [--user 65532]

The same files give the same bytes: owners, times and order are set here. `ctr images import` and `docker load` read the result.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import platform
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# The user "nonroot" of the images that Knative publishes; pods that ask for `runAsNonRoot` need a number.
NOBODY = 65532
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """What an image is: `files` are paths in the image, without the leading slash, and the files or folders that go there."""

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


def main() -> None:
    """An archive from a folder, on the command line."""
    parser = argparse.ArgumentParser(prog="python -m deploy.test_cluster.images", description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("reference")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--entrypoint", nargs="+", required=True)
    parser.add_argument("--user", type=int, default=NOBODY)
    asked = parser.parse_args()
    Image(asked.reference, {"": asked.folder}, asked.entrypoint, user=asked.user).write(asked.archive)


if __name__ == "__main__":
    main()
