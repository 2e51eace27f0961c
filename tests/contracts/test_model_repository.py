"""What every model repository promises. A new implementation inherits `ModelRepositoryContract`."""

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import ModelRepository
from gnomon_profiler.repository import DirectoryRepository
from tests.contracts.small_models import files, two_blocks, with_layers
from tests.refusals import refused


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
    def test_so_are_such_versions(self, repository: ModelRepository, version: str) -> None:
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
