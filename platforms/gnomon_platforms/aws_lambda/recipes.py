"""Recipes: the zip or image, variables and S3 objects by which Lambda serves a function as deployed.

process, redirect     a zip of Gnomon's runtime, 0.2 MB, on Lambda's own Python
a built handler       the same with the handler's folder and its requirements, on the Python that it was built for
a model               the container image with torch; layer program and weights come from S3 when a sandbox begins

The zip that becomes a function: Gnomon's core and runtime, and a user's handler with what its requirements brought.

The same content gives the same bytes: files in order, dated 1980. Lambda takes 250 MB unpacked; what is larger, such as torch,
needs the container image (`LambdaOptions.image`).
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import stat
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import ModelEntry, ModelRepository
from gnomon_core.lambda_envelope import BODY_VARIABLE
from gnomon_core.launch import Launch
from gnomon_core.signature import ModelSignature
from gnomon_core.units import MEGABYTE
from gnomon_platforms.aws_lambda.resources import SMALLEST_STORAGE_MB, LambdaOptions
from gnomon_platforms.images import BuiltHandler, BuiltImages, ImageTable, model_named, no_model_named, process_named

OURS = ("gnomon_core", "gnomon_runtime")
HANDLER = "gnomon_runtime.aws_lambda.handler"
FUNCTION_FOLDER = "function"
MAX_UNPACKED_BYTES = 250 * 2**20
_DATE = (1980, 1, 1, 0, 0, 0)
_LEFT_OUT = frozenset({"__pycache__"})
_NOT_NEEDED = (".pyc", ".dist-info/RECORD", ".pth")


def zip_package(handler: Path | None = None, environment: Path | None = None) -> bytes:
    """The package of a function; `handler` is a user's folder, `environment` the site-packages of its requirements.

    Raises:
        GnomonError: 422 `package_too_large`.

    """
    unpacked = 0
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, file in _package_files(handler, environment):
            unpacked += file.stat().st_size
            if unpacked > MAX_UNPACKED_BYTES:
                raise GnomonError(
                    422,
                    "package_too_large",
                    f"The function takes more than {MAX_UNPACKED_BYTES >> 20} MB unpacked, all that Lambda takes as a zip.",
                    "Ask for less in its requirements. Models need no torch of their own: name one with gnomon/model.",
                )
            entry = zipfile.ZipInfo(name, _DATE)
            entry.compress_type = zipfile.ZIP_DEFLATED
            executable = bool(file.stat().st_mode & stat.S_IXUSR)
            # Functions run as a user of Lambda's, who must be able to read what is here.
            entry.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
            archive.writestr(entry, file.read_bytes())
    return packed.getvalue()


@cache
def own_files() -> tuple[tuple[str, Path], ...]:
    """Gnomon's own part of every package."""
    found: list[tuple[str, Path]] = []
    for package in OURS:
        spec = find_spec(package)
        assert spec is not None
        assert spec.origin is not None
        found += _below(Path(spec.origin).parent, package)
    return tuple(found)


def _package_files(handler: Path | None, environment: Path | None) -> Iterator[tuple[str, Path]]:
    taken: set[str] = set()
    sources = [*own_files(), *(_below(handler, FUNCTION_FOLDER) if handler is not None else ())]
    for name, file in [*sources, *(_below(environment, "") if environment is not None else ())]:
        if name not in taken:
            taken.add(name)
            yield name, file


def _below(folder: Path, prefix: str) -> list[tuple[str, Path]]:
    found: list[tuple[str, Path]] = []
    for file in sorted(folder.rglob("*")):
        parts = file.relative_to(folder).parts
        if file.is_file() and not _LEFT_OUT.intersection(parts) and not file.name.endswith(_NOT_NEEDED):
            found.append(("/".join((prefix, *parts) if prefix else parts), file))
    return found


BARE_RUNTIME = "python3.13"
MAX_VARIABLES_BYTES = 4096
STARTS_WITHIN_S = 60
"""Timeout of a model's function in seconds: a cold start is part of its Invoke."""
LONGEST_TIMEOUT_S = 900
STORAGE_HEADROOM_MB = 64


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A model's file in S3, from where sandboxes fetch it."""

    path: Path
    sha256: str

    def key(self, prefix: str) -> str:
        return f"{prefix}/models/{self.sha256}"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of a Lambda function: a zip on `runtime`, or `image`; `files` by the option that names them."""

    kind: str
    runtime: str | None
    timeout_s: int
    storage_mb: int = SMALLEST_STORAGE_MB
    variables: Mapping[str, str] = field(default_factory=dict)
    handler: Path | None = None
    environment: Path | None = None
    content_id: str = ""
    image: str | None = None
    files: Mapping[str, StoredFile] = field(default_factory=dict)
    signature: ModelSignature | None = None

    @property
    def revision(self) -> str:
        """A digest of what an instance is made from."""
        made_from = [
            self.kind, self.runtime, self.image, self.timeout_s, self.storage_mb, dict(self.variables), self.content_id
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


class Recipes:
    """Resolves functions against the image table, what was built here, and the model repository."""

    def __init__(self, options: LambdaOptions, repository: ModelRepository, built: BuiltImages, images: ImageTable) -> None:
        self._options = options
        self._repository = repository
        self._built = built
        self._images = images

    def find(self, spec: FunctionSpec) -> Recipe:
        """Return the recipe of a function.

        Raises:
            GnomonError: 400 for what can never run on Lambda, 404 for an unknown model.

        """
        if spec.secrets:
            raise bad_request(
                "secrets_unavailable",
                "On Lambda there is no file that only one function can read, so secrets cannot be mounted.",
                "Keep them in AWS Secrets Manager and let the functions' role read them.",
            )
        entry = self._images.find(spec.image)
        built = self._built.resolve(spec.image)
        if entry is not None and entry.kind == "model" and (spec.settings.model is not None or built is None):
            return self._model(spec, entry.environment)
        if built is not None:
            return self._handler(spec, built)
        if entry is None:
            raise self._images.unknown(spec.image)
        no_model_named(spec)
        environment = dict(entry.environment)
        if entry.kind == "process":
            environment["fprocess"] = process_named(spec)
        return Recipe(entry.kind, BARE_RUNTIME, _timeout_s(spec), variables=_variables(spec, entry.kind, environment, {}))

    def _handler(self, spec: FunctionSpec, built: BuiltHandler) -> Recipe:
        library = next((built.python.parent.parent / "lib").glob("python3.*"), None)
        return Recipe(
            "handler",
            library.name if library is not None else BARE_RUNTIME,
            _timeout_s(spec),
            variables=_variables(spec, "handler", {}, {"folder": FUNCTION_FOLDER}),
            handler=built.folder,
            environment=library / "site-packages" if library is not None else None,
            content_id=built.content_id,
        )

    def _model(self, spec: FunctionSpec, environment: Mapping[str, str]) -> Recipe:
        entry = self._repository.get(model_named(spec, self._repository))
        if self._options.image is None or self._options.bucket is None:
            missing = "container image with torch" if self._options.image is None else "bucket for its weights"
            raise bad_request(
                "lambda_incomplete",
                f"A model on Lambda needs a {missing}.",
                "Build the image with deploy/lambda/build.sh and start Gnomon with --lambda-image URI and --lambda-bucket NAME.",
            )
        files = _files(entry)
        stored = {
            name: {"bucket": self._options.bucket, "key": file.key(self._options.prefix), "sha256": file.sha256}
            for name, file in files.items()
        }
        options = {"s3": stored, "weight_mode": "private", "sha256": dict(entry.sha256)}
        size_mb = math.ceil(sum(file.path.stat().st_size for file in files.values()) / MEGABYTE)
        return Recipe(
            "model",
            None,
            max(_timeout_s(spec), STARTS_WITHIN_S),
            storage_mb=max(SMALLEST_STORAGE_MB, size_mb + STORAGE_HEADROOM_MB),
            variables=_variables(spec, "model", environment, options),
            image=self._options.image,
            files=files,
            signature=entry.signature,
        )


def _files(entry: ModelEntry) -> dict[str, StoredFile]:
    paths = {"program": entry.program, "weights": entry.weights, "layers": entry.layers}
    names = {"program": "program.json", "weights": "weights.safetensors", "layers": "layers.json"}
    return {
        option: StoredFile(path, entry.sha256[names[option]])
        for option, path in paths.items()
        if path is not None and names[option] in entry.sha256
    }


def _timeout_s(spec: FunctionSpec) -> int:
    """Seconds after which Lambda ends an Invoke: no client waits for its batch any more."""
    return min(LONGEST_TIMEOUT_S, math.ceil(spec.settings.deadline_s) + 1)


def _variables(spec: FunctionSpec, kind: str, environment: Mapping[str, str], options: Mapping[str, object]) -> dict[str, str]:
    launch = Launch(kind, str(spec.key), spec.key.name, max_batch=spec.settings.max_batch, options=options)
    variables = {**environment, **spec.environment, BODY_VARIABLE: launch.to_json()}
    size = sum(len(name.encode()) + len(value.encode()) for name, value in variables.items())
    if size > MAX_VARIABLES_BYTES:
        raise bad_request(
            "variables_too_large",
            f"The function's variables take {size} bytes; Lambda takes {MAX_VARIABLES_BYTES}, Gnomon's own included.",
            "Shorten them, or read what is large from S3.",
        )
    return variables
