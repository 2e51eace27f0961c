"""Images are archives that container engines read, and the same files give the same bytes."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from deploy.test_cluster.images import Image


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "app").mkdir(parents=True)
    (folder / "app" / "serve").write_text("#!/bin/sh\n")
    (folder / "app" / "serve").chmod(0o755)
    os.link(folder / "app" / "serve", folder / "app" / "same")
    (folder / "latest").symlink_to("app/serve")
    return folder


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {name: tar.extractfile(name).read() for name in tar.getnames()}  # type: ignore[union-attr]


def test_an_archive_names_its_configuration_and_its_layer_by_their_digests(files: Path, tmp_path: Path) -> None:
    image = Image(
        "dev.local/app:v1", {"": files}, ["/app/serve"], arguments=["--port=8080"], environment={"COLOUR": "red"}, user=1000
    )
    content = members(image.write(tmp_path / "app.tar"))
    (entry,) = json.loads(content["manifest.json"])
    assert entry["RepoTags"] == ["dev.local/app:v1"]
    (layer,) = entry["Layers"]
    configuration = json.loads(content[entry["Config"]])
    assert entry["Config"] == f"{hashlib.sha256(content[entry['Config']]).hexdigest()}.json"
    assert configuration["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content[layer]).hexdigest()}"]
    settings = configuration["config"]
    assert (settings["Entrypoint"], settings["Cmd"], settings["User"]) == (["/app/serve"], ["--port=8080"], "1000")
    assert "COLOUR=red" in settings["Env"]


def test_a_layer_keeps_modes_and_links_and_belongs_to_root(files: Path, tmp_path: Path) -> None:
    content = members(Image("a:v1", {"": files}, ["/app/serve"]).write(tmp_path / "a.tar"))
    layer = next(value for name, value in content.items() if name.endswith("layer.tar"))
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        found = {member.name: member for member in tar.getmembers()}
        # A second name of a file is a file as well: layers are unpacked by programs that know no others' order.
        assert tar.extractfile("app/same").read() == b"#!/bin/sh\n"  # type: ignore[union-attr]
    assert sorted(found) == ["app", "app/same", "app/serve", "latest"]
    assert found["app/serve"].mode == 0o755
    assert found["latest"].linkname == "app/serve"
    assert {(member.uid, member.gid, member.mtime) for member in found.values()} == {(0, 0, 0)}


def test_the_same_files_give_the_same_bytes(files: Path, tmp_path: Path) -> None:
    image = Image("a:v1", {"": files}, ["/app/serve"])
    first = image.write(tmp_path / "first.tar").read_bytes()
    os.utime(files / "app" / "serve", (1, 1))
    assert image.write(tmp_path / "second.tar").read_bytes() == first


def test_a_file_can_be_put_under_another_name(files: Path, tmp_path: Path) -> None:
    content = members(Image("a:v1", {"usr/bin/serve": files / "app" / "serve"}, ["/usr/bin/serve"]).write(tmp_path / "a.tar"))
    layer = next(value for name, value in content.items() if name.endswith("layer.tar"))
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        assert tar.getnames() == ["usr/bin/serve"]
