"""What every model repository agrees on: names, versions, the manifest, and what may be stored at all.

A manifest states the model's signature and the SHA-256 of each file; the files are kept by that hash. A file that is not needed
to run a model, such as its layer blocks, may be missing: entries of older versions have none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gnomon_core.errors import GnomonError, bad_request, conflict, not_found
from gnomon_core.nearest_names import did_you_mean
from gnomon_core.program import ALLOWED_OPERATORS, invalid_program, parse_program
from gnomon_core.signature import ModelSignature
from gnomon_profiler.layers_file import LAYERS, check_layers

PROGRAM = "program.json"
WEIGHTS = "weights.safetensors"
NAME = re.compile(r"[a-z0-9][a-z0-9._:-]{0,126}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_FILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MANIFEST_FORMAT = "gnomon-model/1"


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version of a model. `sha256` is by file; `extra` is what one kind of repository keeps for itself."""

    name: str
    version: str
    signature: ModelSignature
    sha256: Mapping[str, str]
    extra: Mapping[str, str]

    def to_bytes(self) -> bytes:
        """The document. The same version gives the same bytes."""
        document = {"format": _MANIFEST_FORMAT, "signature": self.signature.to_json(), "sha256": dict(self.sha256)}
        return json.dumps(
            document | ({"extra": dict(self.extra)} if self.extra else {}), ensure_ascii=False, sort_keys=True
        ).encode()

    def completes(self, other: Manifest) -> bool:
        """Whether it is the other one with more files."""
        return self.signature == other.signature and other.sha256.items() <= self.sha256.items()


def new_manifest(name: str, version: str, files: Mapping[str, bytes], extra: Mapping[str, str] | None = None) -> Manifest:
    """The manifest of files that may be stored.

    Raises:
        GnomonError: 400 for a name or a file that cannot be; 422 for a program that may not run, or for another one's blocks.

    """
    check_name(name, version)
    signature = replace(_check_files(files), model=name, version=version)
    digests = {file: hashlib.sha256(data).hexdigest() for file, data in sorted(files.items())}
    return Manifest(name, version, signature, digests, extra or {})


def check_name(name: str, version: str) -> None:
    """Refuse what cannot name a model.

    Raises:
        GnomonError: 400 `invalid_model_name`.

    """
    if not NAME.fullmatch(name) or not VERSION.fullmatch(version):
        raise bad_request(
            "invalid_model_name",
            f"{name[:150]!r} version {version[:100]!r} cannot name a model.",
            "Use lower-case letters, digits, '.', '_', ':' and '-', beginning with a letter or digit.",
        )


def read_manifest(name: str, version: str, data: bytes) -> Manifest:
    """The manifest in a document.

    Raises:
        GnomonError: 500 `model_corrupt`.

    """
    try:
        document = json.loads(data)
        signature = ModelSignature.from_json(document["signature"])
        digests = {str(file): str(digest) for file, digest in document["sha256"].items()}
        extra = {str(key): str(value) for key, value in document.get("extra", {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise corrupt_manifest(name, version, error) from None
    readable = document.get("format") == _MANIFEST_FORMAT and {PROGRAM, WEIGHTS} <= set(digests)
    if not readable or not all(_SHA256.fullmatch(digest) for digest in (*digests.values(), *extra.values())):
        raise corrupt_manifest(name, version, ValueError("not a manifest"))
    return Manifest(name, version, signature, digests, extra)


def newer(new: Manifest, old: Manifest) -> bool:
    """Whether a new manifest takes an existing one's place: it has its files and more of them.

    Raises:
        GnomonError: 409 `model_exists` where a file differs.

    """
    if old.completes(new):
        return False
    if new.completes(old):
        return True
    raise conflict(
        "model_exists",
        f"Model {new.name}@{new.version} exists with another content.",
        "A version never changes: choose another one.",
    )


def _check_files(files: Mapping[str, bytes]) -> ModelSignature:
    """The signature that the program states, once the program is one that may run."""
    missing = {PROGRAM, WEIGHTS} - set(files)
    if missing or not all(_FILE.fullmatch(file) for file in files):
        raise bad_request(
            "invalid_model", f"A model needs {PROGRAM} and {WEIGHTS}, under plain file names.", "Use gnomon's Extractor."
        )
    program = parse_program(files[PROGRAM])
    refused = sorted(set(program.operators()) - ALLOWED_OPERATORS)
    if refused:
        raise invalid_program(f"Operators that may not run: {', '.join(refused)}.")
    if LAYERS in files:
        check_layers(files[LAYERS], files[PROGRAM], program)
    return program.signature


def sorted_versions(versions: Iterable[str]) -> list[str]:
    """Oldest first. Numbers compare as numbers: 10 is newer than 9, 1.10 than 1.9."""
    return sorted(versions, key=_version_key)


def _version_key(version: str) -> list[tuple[int, int, str]]:
    parts: list[Any] = re.findall(r"\d+|[^\d]+", version)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def missing_model(reference: str, known: Iterable[str]) -> GnomonError:
    """404, naming the models that are there."""
    names = sorted(known)
    hint = f"{did_you_mean(reference, names)} The repository has: {', '.join(names)}." if names else "The repository is empty."
    return not_found(
        "model_not_found", f"There is no model {reference[:200]!r}.", f"{hint.strip()} Add one with `gnomon models add`."
    )


def corrupt_file(name: str, version: str, file: str) -> GnomonError:
    """500: a file is not what its manifest states."""
    return GnomonError(
        500,
        "model_corrupt",
        f"Model {name}@{version}: {file} does not have the SHA-256 that its manifest states.",
        "Put it again; nothing is served from it.",
    )


def corrupt_manifest(name: str, version: str, error: Exception) -> GnomonError:
    """500: the manifest itself cannot be read."""
    return GnomonError(
        500, "model_corrupt", f"Model {name}@{version} has no readable manifest ({type(error).__name__}).", "Put it again."
    )
