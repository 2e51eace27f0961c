"""A model repository in a bucket promises what every one does, and what many machines at it need."""

import json
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
from gnomon_cli.model_folder import model_folder
from gnomon_core.errors import GnomonError
from gnomon_profiler.places import open_repository, share_profile
from gnomon_profiler.repository import DirectoryRepository
from gnomon_profiler.s3 import S3Repository
from gnomon_profiler.tensor_index import TensorIndex
from tests.contracts.small_models import files, two_blocks, with_layers
from tests.contracts.test_model_repository import ModelRepositoryContract

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
        """As another machine has it: with nothing fetched."""
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

    def test_a_model_is_served_where_what_was_measured_of_it_may_not_be_read(self, bucket: Bucket) -> None:
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
