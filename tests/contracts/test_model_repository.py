"""The contract of every model repository, in a folder or in a bucket. A new one inherits `ModelRepositoryContract`."""

import hashlib
import io
import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from click.testing import CliRunner
from moto.server import ThreadedMotoServer
from safetensors.numpy import load

from gnomon_cli.main import gnomon
from gnomon_cli.model_repository import model_folder
from gnomon_core.engines import EngineReport, EngineResult
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelRepository
from gnomon_profiler.repository import DirectoryRepository, open_repository, share_profile
from gnomon_profiler.s3 import S3Repository
from gnomon_profiler.tensor_index import TensorIndex
from tests.contracts.small_models import files, two_blocks, with_layers
from tests.refusals import refused


def on_disk(folder: Path, contents: dict[str, bytes]) -> dict[str, Path]:
    """Write these files into a new folder."""
    folder.mkdir()
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in contents}


def report_of(seconds: float) -> bytes:
    """A report on engines of a program that takes so long."""
    return json.dumps(EngineReport(EngineResult(latency_s={1: seconds}), {}).to_json()).encode()


class ModelRepositoryContract:
    @pytest.fixture
    def repository(self) -> ModelRepository:
        raise NotImplementedError

    def test_stored_model_is_read_back_unchanged(self, repository: ModelRepository) -> None:
        put = repository.put("scale", "1", files())
        got = repository.get("scale@1")
        assert got == put
        assert (got.name, got.version) == ("scale", "1")
        assert (got.signature.model, got.signature.version) == ("scale", "1")
        assert got.signature.details == {"scale": 2.0}
        assert got.program.read_bytes() == files()["program.json"]
        assert got.weights.read_bytes() == files()["weights.safetensors"]
        assert set(got.sha256) == {"program.json", "weights.safetensors"}

    def test_layer_blocks_are_served_beside_their_program(self, repository: ModelRepository) -> None:
        put = repository.put("scale", "1", with_layers(files()))
        got = repository.get("scale@1")
        assert got == put
        assert got.layers.read_bytes() == with_layers(files())["layers.json"]
        assert set(got.sha256) == {"program.json", "weights.safetensors", "layers.json"}
        assert repository.verify("scale")

    def test_files_on_disk_are_stored_like_bytes(self, repository: ModelRepository, tmp_path: Path) -> None:
        made, _ = two_blocks()
        put = repository.put_files("two", "1", on_disk(tmp_path / "first", made))
        assert repository.put("two", "1", made) == put == repository.put_files("two", "1", on_disk(tmp_path / "again", made))
        assert {file: path.read_bytes() for file, path in put.files.items()} == made
        assert repository.verify("two")
        with refused(409, "model_exists"):
            repository.put_files("two", "1", on_disk(tmp_path / "other", files()))
        with refused(422, "invalid_layers"):
            repository.put_files("three", "1", on_disk(tmp_path / "wrong", made | {"program.json": files()["program.json"]}))
        assert [entry.name for entry in repository.list()] == ["two"]

    def test_a_report_on_engines_that_cannot_be_read_is_refused(self, repository: ModelRepository) -> None:
        for report in (b"", b"[]", b"{}", b'{"format": "gnomon-engines/2", "program": {}, "engines": {"openvino": 1}}'):
            with refused(422, "invalid_engines"):
                repository.put("scale", "1", files() | {"engines.json": report})
        assert list(repository.list()) == []

    def test_a_newer_report_on_engines_replaces_the_stored_one_and_nothing_else(self, repository: ModelRepository) -> None:
        old, new = (report_of(seconds) for seconds in (0.2, 0.1))
        repository.put("scale", "1", files() | {"engines.json": old})
        replaced = repository.put("scale", "1", files() | {"engines.json": new, "model-int8.onnx": b"graph"})
        assert replaced.files["engines.json"].read_bytes() == new
        assert repository.put("scale", "1", files()) == replaced, "files that are there stay"
        with refused(409, "model_exists"):
            repository.put("scale", "1", files() | {"engines.json": old, "model-int8.onnx": b"another"})
        assert repository.get("scale") == replaced
        assert repository.verify("scale")

    def test_a_validation_set_that_cannot_be_used_is_refused(self, repository: ModelRepository) -> None:
        empty = io.BytesIO()
        np.savez(empty, samples=np.zeros((0, 3), "float32"), labels=np.zeros(0, int))
        for content in (b"", b"PK", empty.getvalue()):
            with refused(422, "invalid_validation"):
                repository.put("scale", "1", files() | {"validation.npz": content})
        assert list(repository.list()) == []

    def test_an_entry_without_layer_blocks_is_served_and_may_get_them_later(self, repository: ModelRepository) -> None:
        assert repository.put("scale", "1", files()).layers is None
        completed = repository.put("scale", "1", with_layers(files()))
        assert completed.layers is not None
        assert repository.get("scale") == completed
        assert repository.put("scale", "1", files()) == completed
        with refused(409, "model_exists"):
            repository.put("scale", "1", with_layers(files(), difference=1e-6))

    def test_layer_blocks_of_another_program_are_refused(self, repository: ModelRepository) -> None:
        for wrong in (with_layers(files(3.0))["layers.json"], b"{}", b"", with_layers(files())["layers.json"][:-1]):
            with refused(422, "invalid_layers"):
                repository.put("scale", "1", files() | {"layers.json": wrong})
        assert list(repository.list()) == []

    def test_a_shadow_gets_the_weights_of_its_blocks(self, repository: ModelRepository) -> None:
        made, weights = two_blocks()
        whole = repository.put("two", "1", made)
        for blocks, names in (([0], ["a", "b", "c"]), ([1], ["big"]), ([0, 1], list(weights)), ([], [])):
            part = repository.get_blocks("two@1", blocks)
            stored = load(part.weights.read_bytes())
            assert all(np.array_equal(stored[name], weights[name]) for name in names)
            assert (part.program, part.layers, part.signature) == (whole.program, whole.layers, whole.signature)
            assert hashlib.sha256(part.weights.read_bytes()).hexdigest() == part.sha256["weights.safetensors"]
        repository.put("scale", "1", files())
        assert repository.get_blocks("scale", [0]).weights.read_bytes() == files()["weights.safetensors"]
        with refused(404):
            repository.get_blocks("three", [0])

    def test_a_name_alone_is_its_newest_version(self, repository: ModelRepository) -> None:
        for version in ("9", "10", "2"):
            repository.put("scale", version, files(float(version)))
        assert repository.get("scale").version == "10"
        assert repository.get("scale@2").version == "2"

    def test_the_same_content_again_is_no_error_another_is_a_conflict(self, repository: ModelRepository) -> None:
        first = repository.put("scale", "1", files())
        assert repository.put("scale", "1", files()) == first
        with refused(409, "model_exists"):
            repository.put("scale", "1", files(3.0))
        assert repository.get("scale") == first

    def test_a_missing_model_is_a_404_that_names_what_is_there(self, repository: ModelRepository) -> None:
        repository.put("scale", "1", files())
        for reference in ("other", "scale@2", "", "@1", "../scale", "scale@../1"):
            with refused(404, "model_not_found", hint="scale@1"):
                repository.get(reference)

    @pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "A", "a" * 200, "a\0", ".hidden"])
    def test_names_that_could_leave_the_repository_are_refused(self, repository: ModelRepository, name: str) -> None:
        with refused(400):
            repository.put(name, "1", files())
        assert list(repository.list()) == []

    @pytest.mark.parametrize("version", ["", "..", "../x", "a/b", "a" * 200, "a\0", ".hidden", "1@2"])
    def test_invalid_versions_are_refused_too(self, repository: ModelRepository, version: str) -> None:
        with refused(400):
            repository.put("scale", version, files())
        assert list(repository.list()) == []

    def test_program_with_a_forbidden_operator_is_not_stored(self, repository: ModelRepository) -> None:
        for broken in (
            files(op="aten.from_file.default"),
            files() | {"program.json": b"{}"},
            {"program.json": files()["program.json"]},
            files() | {"../x": b""},
        ):
            with pytest.raises(GnomonError):
                repository.put("scale", "1", broken)
        assert list(repository.list()) == []

    def test_lists_and_verifies_what_is_whole(self, repository: ModelRepository) -> None:
        repository.put("torchvision:scale", "1", files())
        repository.put("scale", "2", files(3.0))
        assert sorted((entry.name, entry.version) for entry in repository.list()) == [("scale", "2"), ("torchvision:scale", "1")]
        assert repository.verify("scale")
        assert repository.verify("torchvision:scale@1")

    def test_writers_at_once_leave_whole_entries(self, repository: ModelRepository) -> None:
        refused: list[str] = []

        def write(number: int) -> None:
            try:
                repository.put("scale", "1", files(float(number % 2)))
            except GnomonError as error:
                refused.append(error.code)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused == ["model_exists"] * 4
        assert repository.verify("scale")


class TestDirectoryRepository(ModelRepositoryContract):
    @pytest.fixture
    def repository(self, tmp_path: Path) -> DirectoryRepository:
        return DirectoryRepository(tmp_path / "models")

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return tmp_path / "models"

    @pytest.mark.parametrize("damage", ["flip", "truncate", "grow", "remove"])
    @pytest.mark.parametrize("which", ["program", "weights", "layers"])
    def test_a_damaged_file_is_never_served_and_putting_it_again_mends_it(
        self, repository: DirectoryRepository, damage: str, which: str
    ) -> None:
        entry = repository.put("scale", "1", with_layers(files()))
        repository.put("scale", "2", files(3.0))
        assert repository.get("scale@1") == entry
        path: Path = getattr(entry, which)
        data = path.read_bytes()
        path.chmod(0o644)
        if damage == "remove":
            path.unlink()
        else:
            path.write_bytes({"flip": data[:-1] + bytes([data[-1] ^ 1]), "truncate": data[:-1], "grow": data + b"x"}[damage])
        with refused(500, "model_corrupt"):
            repository.get("scale@1")
        assert not repository.verify("scale@1")
        assert [found.version for found in repository.list()] == ["2"]
        assert repository.put("scale", "1", with_layers(files())) == entry
        assert repository.get("scale@1") == entry

    def test_a_damaged_manifest_is_never_served_and_can_be_mended(self, repository: DirectoryRepository, root: Path) -> None:
        entry = repository.put("scale", "1", files())
        manifest = root / "models" / "scale" / "1" / "manifest.json"
        manifest.chmod(0o644)
        for text in (b"", b"{", b"[]", b'{"format": "gnomon-model/1", "signature": {}, "sha256": {}}'):
            manifest.write_bytes(text)
            with pytest.raises(GnomonError, match="manifest"):
                repository.get("scale")
            assert not repository.verify("scale")
            assert list(repository.list()) == []
        assert repository.put("scale", "1", files()) == entry

    def test_a_refused_version_leaves_no_files(self, repository: DirectoryRepository, root: Path, tmp_path: Path) -> None:
        repository.put("scale", "1", files())
        before = sorted(root.rglob("*"))
        with refused(409, "model_exists"):
            repository.put("scale", "1", files(3.0))
        with refused(409, "model_exists"):
            repository.put_files("scale", "1", on_disk(tmp_path / "other", files(4.0)))
        assert sorted(root.rglob("*")) == before

    def test_files_are_read_only_and_kept_once(self, repository: DirectoryRepository, root: Path) -> None:
        first = repository.put("scale", "1", files())
        second = repository.put("same", "7", files())
        assert first.weights == second.weights
        assert all(path.stat().st_mode & 0o222 == 0 for path in root.rglob("*") if path.is_file() and path.name != "lock")

    def test_a_second_process_sees_what_the_first_has_put(self, repository: DirectoryRepository, root: Path) -> None:
        entry = repository.put("scale", "1", files())
        assert DirectoryRepository(root).get("scale") == entry

    def test_needs_no_torch(self) -> None:
        code = "import sys, gnomon_profiler.repository, gnomon_profiler.add; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_a_writer_killed_at_any_moment_leaves_the_old_or_the_new(self, repository: DirectoryRepository, root: Path) -> None:
        """The writer stops itself with SIGKILL before its n-th change of the file system, for every n until it gets through."""
        repository.put("scale", "1", files())
        survived = False
        for ended in killed_writers(root, files(3.0)):
            entries = {entry.version: entry for entry in DirectoryRepository(root).list()}
            assert set(entries) in ({"1"}, {"1", "2"})
            assert DirectoryRepository(root).get("scale").version == max(entries)
            if ended == 0:
                assert set(entries) == {"1", "2"}
                survived = True
                break
            assert ended == -signal.SIGKILL
        assert survived, "sixty changes were not enough to get through a put"
        assert list((root / "incoming").iterdir()) == []


def killed_writers(root: Path, made: dict[str, bytes]) -> Iterator[int]:
    """How the writer ended that was to be killed before its first change, its second, and so on: all forks of one process."""
    writer = subprocess.Popen([sys.executable, "-c", KILLED_WRITER, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with writer as process, process.stdin:
        process.stdin.write(json.dumps({name: data.decode("latin-1") for name, data in made.items()}).encode() + b"\n")
        for step in range(60):
            process.stdin.write(b"%d\n" % step)
            process.stdin.flush()
            yield int(process.stdout.readline())


KILLED_WRITER = """
import json, os, signal, sys
from pathlib import Path
from gnomon_profiler.repository import DirectoryRepository

files = {name: text.encode("latin-1") for name, text in json.loads(sys.stdin.readline()).items()}

def watch(event, arguments):
    global left
    if event == "open" and not (arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
        return
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.chmod"):
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

while line := sys.stdin.readline():
    left = int(line)
    if (writer := os.fork()) == 0:
        sys.addaudithook(watch)
        DirectoryRepository(Path(sys.argv[1])).put("scale", "2", files)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]), flush=True)
"""


PUBLISHED = Path(__file__).parents[2] / "profiles" / "resnet50.json"


@pytest.fixture(scope="module")
def s3_address() -> Iterator[str]:
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def s3_client(address: str) -> Any:
    quick = Config(retries={"max_attempts": 1}, connect_timeout=2, s3={"addressing_style": "path"})
    keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=address, config=quick, **keys)


def set_up(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """Have boto3's chain find the server."""
    settings = {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"AWS_{name}", value)


class Bucket:
    """A fresh bucket of moto's server, and repositories in it with folders of their own."""

    def __init__(self, address: str, folder: Path) -> None:
        self.client, self.name, self._folder, self._count = s3_client(address), f"models-{uuid.uuid4().hex}", folder, 0
        self.client.create_bucket(Bucket=self.name)

    def repository(self) -> S3Repository:
        """The repository as another machine sees it: with an empty cache."""
        self._count += 1
        return S3Repository(self.name, "gnomon", self._folder / str(self._count), self.client)

    def key(self, digest: str) -> str:
        return f"gnomon/objects/{digest[:2]}/{digest}"


@pytest.fixture
def bucket(s3_address: str, tmp_path: Path) -> Bucket:
    return Bucket(s3_address, tmp_path)


class TestS3Repository(ModelRepositoryContract):
    @pytest.fixture
    def repository(self, bucket: Bucket) -> S3Repository:
        return bucket.repository()

    def test_another_machine_gets_what_one_has_put(self, bucket: Bucket) -> None:
        put = bucket.repository().put("scale", "1", with_layers(files()))
        got = bucket.repository().get("scale")
        assert (got.sha256, got.signature) == (put.sha256, put.signature)
        assert got.weights != put.weights
        assert got.weights.read_bytes() == files()["weights.safetensors"]

    @pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
    @pytest.mark.parametrize("which", ["program.json", "weights.safetensors", "layers.json"])
    def test_a_damaged_object_is_never_served_and_putting_it_again_mends_it(
        self, bucket: Bucket, damage: str, which: str
    ) -> None:
        entry = bucket.repository().put("scale", "1", with_layers(files()))
        bucket.repository().put("scale", "2", files(3.0))
        key, data = bucket.key(entry.sha256[which]), with_layers(files())[which]
        if damage == "remove":
            bucket.client.delete_object(Bucket=bucket.name, Key=key)
        else:
            body = data[:-1] if damage == "truncate" else data[:-1] + bytes([data[-1] ^ 1])
            bucket.client.put_object(Bucket=bucket.name, Key=key, Body=body)
        fresh = bucket.repository()
        for _ in range(2):
            with pytest.raises(GnomonError) as caught:
                fresh.get("scale@1")
            assert (caught.value.status, caught.value.code) == (500, "model_corrupt")
        assert not fresh.verify("scale@1")
        assert [found.version for found in fresh.list()] == ["2"]
        bucket.repository().put("scale", "1", with_layers(files()))
        assert fresh.get("scale@1").sha256 == entry.sha256
        assert fresh.verify("scale@1")

    def test_a_damaged_part_is_never_served(self, bucket: Bucket) -> None:
        made, _ = two_blocks()
        entry = bucket.repository().put("two", "1", made)
        at = TensorIndex.of(made["weights.safetensors"]).tensors["big"].begin
        body = made["weights.safetensors"][:at] + b"\xff" + made["weights.safetensors"][at + 1 :]
        key = bucket.key(entry.sha256["weights.safetensors"])
        bucket.client.put_object(Bucket=bucket.name, Key=key, Body=body)
        fresh = bucket.repository()
        assert fresh.get_blocks("two", [0]).layers is not None, "its own tensors are whole"
        for damaged in (body, body[:1000], b""):
            bucket.client.put_object(Bucket=bucket.name, Key=key, Body=damaged)
            with pytest.raises(GnomonError) as caught:
                fresh.get_blocks("two", [1])
            assert caught.value.code == "model_corrupt"

    def test_a_damaged_folder_is_fetched_again(self, bucket: Bucket) -> None:
        made, weights = two_blocks()
        repository = bucket.repository()
        entry = repository.put("two", "1", made)
        part = repository.get_blocks("two", [0])
        for path in (entry.weights, part.weights):
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-1])
        assert repository.get("two").weights.read_bytes() == made["weights.safetensors"]
        assert np.array_equal(load(repository.get_blocks("two", [0]).weights.read_bytes())["a"], weights["a"])

    def test_only_the_tensors_of_its_blocks_are_fetched_and_once(self, bucket: Bucket) -> None:
        made, weights = two_blocks()
        bucket.repository().put("two", "1", made)
        fresh, fetched = bucket.repository(), []
        bucket.client.meta.events.register("after-call.s3.GetObject", lambda parsed, **_: fetched.append(parsed["ContentLength"]))
        part = fresh.get_blocks("two@1", [0])
        assert set(load(part.weights.read_bytes())) - {"a", "b", "c"} == {"__gap__/a", "__gap__/b"}
        assert sum(fetched) < 10_000 < weights["big"].nbytes
        fetched.clear()
        assert fresh.get_blocks("two@1", [0]) == part
        assert len(fetched) == 1, "the manifest"

    def test_tensors_of_a_part_begin_at_cache_lines(self, bucket: Bucket) -> None:
        bucket.repository().put("two", "1", two_blocks()[0])
        data = bucket.repository().get_blocks("two", [0]).weights.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        assert all((start + header[name]["data_offsets"][0]) % 64 == 0 for name in ("a", "b", "c"))

    def test_model_without_a_manifest_does_not_exist(self, bucket: Bucket) -> None:
        """A writer was killed before it put the manifest, which is last."""
        bucket.repository().put("scale", "1", files())
        bucket.client.delete_object(Bucket=bucket.name, Key="gnomon/models/scale/1/manifest.json")
        assert list(bucket.repository().list()) == []
        with pytest.raises(GnomonError, match="There is no model"):
            bucket.repository().get("scale")

    def test_a_damaged_manifest_is_never_served_and_can_be_mended(self, bucket: Bucket) -> None:
        repository = bucket.repository()
        entry = repository.put("scale", "1", files())
        for text in (b"", b"{", b"[]"):
            bucket.client.put_object(Bucket=bucket.name, Key="gnomon/models/scale/1/manifest.json", Body=text)
            with pytest.raises(GnomonError, match="manifest"):
                repository.get("scale")
            assert not repository.verify("scale")
            assert list(repository.list()) == []
        assert repository.put("scale", "1", files()) == entry

    def test_a_bucket_that_cannot_be_used_is_a_503_that_says_what_to_check(self, bucket: Bucket, tmp_path: Path) -> None:
        nowhere = S3Repository("models", "", tmp_path / "x", s3_client("http://127.0.0.1:9"))
        missing = S3Repository("no-such-bucket", "", tmp_path / "y", bucket.client)
        for repository in (nowhere, missing):
            with pytest.raises(GnomonError) as caught:
                repository.get("scale")
            assert (caught.value.status, caught.value.code) == (503, "repository_unreachable")
            assert "AWS_ENDPOINT_URL" in caught.value.hint

    def test_profiles_of_other_machines_come_with_the_model(
        self, bucket: Bucket, s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measured = tmp_path / "slow-machine-2-cores.json"
        profile = PUBLISHED.read_text().replace('"model":"torchvision:resnet50@1"', '"model":"scale@1"')
        assert '"model":"scale@1"' in profile
        measured.write_text(profile)
        there = bucket.repository()
        there.put("scale", "1", with_layers(files()))
        share_profile(there, "scale@1", measured)
        state = tmp_path / "other"
        set_up(monkeypatch, s3_address)
        where = ("--models", f"s3://{bucket.name}/gnomon", "--state", str(state))
        shown = CliRunner().invoke(gnomon, ["models", "profiles", "scale", *where])
        assert (shown.exit_code, "slow-machine-2-cores.json" in shown.output) == (0, True), shown.output
        fetched = model_folder(where[1], str(state)) / "profiles" / "scale@1" / measured.name
        assert fetched.read_text() == profile

        here, asked = open_repository(where[1], model_folder(where[1], str(state))), []
        assert isinstance(here, S3Repository)
        here._bucket._client.meta.events.register(
            "before-parameter-build.s3.GetObject", lambda params, **_: asked.append(params["Key"])
        )
        here.get("scale")
        assert [key for key in asked if "profiles" in key] == [], "it is here"
        measured.write_text(profile + " ")
        share_profile(there, "scale@1", measured)
        here.get_blocks("scale", ())
        assert fetched.read_text() == profile + " ", "it was measured anew"

    def test_model_is_served_although_its_profile_is_unreadable(self, bucket: Bucket) -> None:
        bucket.repository().put("scale", "1", files())
        fresh = bucket.repository()

        def refused(params: dict[str, Any], **_: Any) -> None:
            if "profiles/" in params["Prefix"]:
                raise ClientError({"Error": {"Code": "AccessDenied"}}, "ListObjectsV2")

        events = bucket.client.meta.events
        events.register("before-parameter-build.s3.ListObjectsV2", refused)
        assert fresh.get("scale").version == "1"
        assert fresh.get_blocks("scale", ()).version == "1"
        events.unregister("before-parameter-build.s3.ListObjectsV2", refused)

    def test_an_address_leads_to_it(
        self, bucket: Bucket, s3_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        set_up(monkeypatch, s3_address)
        bucket.repository().put("scale", "1", files())
        assert open_repository(f"s3://{bucket.name}/gnomon", tmp_path / "cache").get("scale").version == "1"
        assert isinstance(open_repository(str(tmp_path / "here")), DirectoryRepository)
