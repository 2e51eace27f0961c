"""The sources and packages that the test cluster is built from."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from deploy import install
from deploy.pack_templates import BODY, locked_build, origin, torch_build
from tests.cluster import build, knative, requirements
from tests.cluster.__main__ import sizes
from tests.cluster.images import DEBIAN, RECIPES, Image, Recipe, assembled, digest
from tests.cluster.phases import CannotBeHad


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


def test_programs_say_the_version_that_is_pinned() -> None:
    version = build.version("k8s.io/kubernetes")
    assert f"-X k8s.io/component-base/version.gitVersion={version} " in build.linker_flags() + " "
    assert f"gitMinor={version.split('.')[1]}" in build.linker_flags()


def test_another_pin_is_another_folder(tmp_path: Path) -> None:
    copy = tmp_path / "programs"
    shutil.copytree(build.SOURCES, copy)
    same = build.digest(copy)
    assert same == build.digest(build.SOURCES)
    (copy / "go.mod").write_text((copy / "go.mod").read_text().replace("v0.50.0", "v0.50.1"))
    assert build.digest(copy) != same


def test_knatives_objects_get_our_images_and_leave_room_for_functions() -> None:
    container = {"image": "ko://knative.dev/serving/cmd/queue", "resources": {"requests": {"cpu": "300m"}}, "readinessProbe": {}}
    item = {
        "kind": "Deployment",
        "metadata": {"name": "activator"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    (adapted,) = knative.adapted(item)["spec"]["template"]["spec"]["containers"]
    assert adapted["image"] == "dev.local/queue:v1"
    assert adapted["resources"]["requests"] == {"cpu": "0"}


def test_a_disk_without_room_is_a_reason_to_skip(tmp_path: Path) -> None:
    with pytest.raises(CannotBeHad, match="GB of disk are needed"):
        requirements.check_disk_space(tmp_path / "not" / "there", 1e9)


@pytest.mark.parametrize(
    "said",
    [
        "k8s.io/api@v0.35.7: reading https://proxy.golang.org/k8s.io/api/@v/v0.35.7.zip: 403 Forbidden",
        "dial tcp: lookup proxy.golang.org: no such host",
    ],
)
def test_a_proxy_that_refuses_is_told_from_code_that_does_not_compile(said: str) -> None:
    assert build.REFUSED.search(said)
    assert not build.REFUSED.search("coredns/main.go:5:2: undefined: coremain")


DOCKERFILES = sorted({recipe.context / "Dockerfile" for recipe in RECIPES.values()})


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A template as gnomon-shadow is: its Dockerfile is a link."""
    other, folder = tmp_path / "other", tmp_path / "template"
    for made in (other, folder / "function"):
        made.mkdir(parents=True)
    (other / "Dockerfile").write_text("FROM scratch\n")
    (folder / "Dockerfile").symlink_to("../other/Dockerfile")
    (folder / "function" / "handler.py").write_text("theirs\n")
    (folder / "function" / "handler_test.py").write_text("theirs\n")
    return folder


def test_a_context_has_no_links_and_the_users_handler(context: Path, tmp_path: Path) -> None:
    handler = tmp_path / "mine"
    handler.mkdir()
    (handler / "handler.py").write_text("mine\n")
    with assembled(Recipe(context, handler)) as made:
        assert not (made / "Dockerfile").is_symlink()
        assert (made / "Dockerfile").read_text() == "FROM scratch\n"
        assert (made / "function" / "handler.py").read_text() == "mine\n"
        assert not (made / "function" / "handler_test.py").exists()
    assert not made.exists()
    assert (context / "function" / "handler.py").read_text() == "theirs\n"


def test_another_byte_or_mode_is_another_image(context: Path) -> None:
    before = digest(context)
    assert digest(context) == before
    (context / "function" / "handler.py").write_text("other\n")
    changed = digest(context)
    assert changed != before
    (context / "function" / "handler.py").chmod(0o755)
    assert digest(context) != changed


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_images_are_pinned_unprivileged_and_without_installers(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    assert "ARG PYTHON_IMAGE=python:3.12-slim\n" in text
    shipped = text.rpartition("\nFROM ")[2]
    assert shipped.startswith("${PYTHON_IMAGE}")
    assert re.search(r"^USER [1-9]\d*:[1-9]\d*$", shipped, re.MULTILINE)
    assert not re.search(r"pip install|apt-get|gcc|build-essential", shipped)
    installs = re.findall(r"pip install (.*)", text)
    assert installs[0].startswith("--require-hashes --only-binary :all:")
    assert "pip uninstall --yes pip" in text


def test_each_archive_is_told_with_its_size(tmp_path: Path) -> None:
    for name, size in (("gnomon-a.tar", 1_600_000), ("gnomon-b.tar", 400_000_000)):
        with (tmp_path / name).open("wb") as archive:
            archive.truncate(size)
    lines = sizes([tmp_path / "gnomon-a.tar", tmp_path / "gnomon-b.tar"])
    assert [line.rpartition(": ")[2] for line in lines.splitlines()] == ["2 MB", "400 MB"]


@pytest.mark.parametrize("name", ["gateway", "coordinator"])
def test_installed_requirements_are_locked_by_hash(name: str) -> None:
    lock = (RECIPES[f"gnomon-{name}"].context / "requirements.txt").read_text()
    lines = [line for line in lock.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==\S+( ; .*?)?( +--hash=sha256:[0-9a-f]{64})+", line), line
    names = {line.partition("==")[0] for line in lines}
    assert {"click", "pyyaml", "urllib3"} <= names
    assert not {"gnomon", "uv", "torch"} & names


def test_the_debian_base_is_nothing_but_what_was_made() -> None:
    assert "FROM scratch\nADD root.tar /\n" in (DEBIAN / "Dockerfile").read_text()


ROOT = Path(__file__).resolve().parents[3]


def asked(words: list[str], cache: Path, prefix: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    return asked_of("tests.cluster", words, cache, prefix, **environment)


def asked_of(
    module: str, words: list[str], cache: Path, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "GNOMON_CLUSTER_CACHE": str(cache), **environment}
    everything.pop("KUBECONFIG", None)
    command = [*prefix, sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=ROOT, env=everything, capture_output=True, text=True, check=False)


@pytest.fixture
def nobody() -> tuple[str, ...]:
    """The arguments that make a command run as an ordinary user."""
    if os.geteuid():
        return ()
    if subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel makes no user namespaces")
    return ("unshare", "--user")


def test_an_ordinary_user_without_a_cluster_skips(nobody: tuple[str, ...], tmp_path: Path) -> None:
    done = asked(["run", "--", "echo", "run"], tmp_path, nobody)
    assert done.returncode == 0
    assert "needs root" in done.stderr
    assert "run" not in done.stdout


def test_an_ordinary_user_who_asks_for_a_cluster_is_refused(nobody: tuple[str, ...], tmp_path: Path) -> None:
    done = asked(["up"], tmp_path, nobody)
    assert done.returncode == 3
    assert "needs root" in done.stderr
    assert not (tmp_path / "state").exists()


def test_root_without_its_powers_skips(tmp_path: Path) -> None:
    """Root lacks these powers in most containers."""
    if os.geteuid():
        pytest.skip("needs root")
    bound = ("setpriv", "--inh-caps=-net_admin", "--bounding-set=-net_admin")
    done = asked(["run", "--", "echo", "run"], tmp_path, bound)
    assert done.returncode == 0
    assert "root lacks CAP_NET_ADMIN here" in done.stderr


def test_without_go_nothing_is_compiled(tmp_path: Path) -> None:
    done = asked(["build"], tmp_path, PATH="/usr/sbin:/sbin")
    assert done.returncode == 3
    assert "there is no `go`" in done.stderr


def test_without_modules_nothing_is_compiled(tmp_path: Path) -> None:
    """A single module is asked for first: without a proxy the build ends in a second, not after a thousand attempts."""
    if shutil.which("go") is None or shutil.disk_usage(tmp_path).free < requirements.BUILD_GB * 1e9:
        pytest.skip("needs go, and as much room as compiling does")
    modules = str(tmp_path / "modules")
    done = asked(["build"], tmp_path, GOPROXY="http://127.0.0.1:1", GOMODCACHE=modules, GOTOOLCHAIN="local")
    assert done.returncode == 3
    assert "the Go proxy does not give what is needed" in done.stderr or "Go 1.26 or newer" in done.stderr


def run_with(kubeconfig: str, script: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "tests.cluster", "run", "--", "sh", "-ec", script]
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_command_gets_the_cluster_that_is_named_and_its_status_counts(nobody: tuple[str, ...], tmp_path: Path) -> None:
    """The command runs as any user, and in any working directory."""
    named = tmp_path / "some.conf"
    named.touch()
    script = f"cd /; test $GNOMON_TEST_KUBECONFIG -ef {named}; exit 4"
    assert run_with(str(named), script).returncode == 4
    assert run_with(os.path.relpath(named, ROOT), script, nobody).returncode == 4


def test_a_kubeconfig_that_is_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    """Each test would say so by itself, in words of its own."""
    missing = run_with("/some/where", "exit 0")
    assert missing.returncode == 1
    assert "KUBECONFIG names /some/where, and there is no such file" in missing.stderr
    several = run_with(f"{tmp_path}/a:{tmp_path}/b", "exit 0")
    assert several.returncode == 1
    assert "KUBECONFIG names several files" in several.stderr


def test_conformance_that_an_ordinary_user_asks_for_is_an_error(nobody: tuple[str, ...], tmp_path: Path) -> None:
    """A question about passed tests must not be answered by a status of 0."""
    kept = tmp_path / "kept.json"
    done = asked_of("tests.cluster.conformance", ["--keep", str(kept)], tmp_path, nobody)
    assert done.returncode == 3
    assert "needs root" in done.stderr
    assert not kept.exists()


def test_conformance_without_a_cluster_is_an_error(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    done = asked_of("tests.cluster.conformance", [], tmp_path, PATH=str(tmp_path))
    assert done.returncode == 3
    assert "no cluster runs" in done.stderr or "no Envoy" in done.stderr


class Index(BaseHTTPRequestHandler):
    """A package index that has torch."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/whl/cpu/torch/" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        del format, args


@pytest.fixture
def index() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Index) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/whl/cpu"
        server.shutdown()


def test_without_a_word_it_is_the_processors_where_that_is_to_be_had(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "CPU_INDEX", index)
    assert [torch_build(environment) for environment in ({}, {"TORCH": ""})] == ["cpu", "cpu"]
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setattr(install, "CPU_INDEX", f"http://127.0.0.1:{nobody.getsockname()[1]}")
        assert torch_build({}) == "default"


def test_named_requirement_is_packed(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "CPU_INDEX", index)
    for variant in ("cpu", "default"):
        assert torch_build({"TORCH": variant}) == variant
        assert origin(BODY, {"TORCH": variant}).startswith(f"# torch: {variant};")


def test_locked_requirements_are_known() -> None:
    assert BODY.lock.read_text().startswith(f"# torch: {locked_build()};")
