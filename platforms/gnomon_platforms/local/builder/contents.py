"""What was built, kept by content: a handler folder under the SHA-256 of its files.

    contents/<content id>/function/        handler.py and what belongs to it
    contents/<content id>/content.json     which template it came with, and which environment it runs in

An archive is unpacked beside, and what it holds is moved into place by one rename, so a folder that is there is whole.
"""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from gnomon_core.errors import GnomonError
from gnomon_platforms.local.builder import dates
from gnomon_platforms.local.builder.requirements import Requirements, read_requirements
from gnomon_platforms.local.builder.unpack import Limits, unpack

CONFIG = "com.openfaas.docker.config"
HANDLER_FOLDER = "function"
MAX_DOCUMENT_BYTES = 1 << 20
TEMPLATES = ("gnomon-body", "python3-http", "python3-http-debian", "python3-flask", "python3-flask-debian")
TEMPORARY = ".incoming-"


@dataclass(frozen=True, slots=True)
class Content:
    """A handler folder in the store."""

    content_id: str
    template: str
    environment_id: str


@dataclass(frozen=True, slots=True)
class Received:
    """What an archive held: an image name, the build arguments, the content and its requirements."""

    image: str
    build_args: dict[str, str]
    content: Content
    requirements: Requirements


class Contents:
    """The store of handler folders."""

    def __init__(self, folder: Path, limits: Limits) -> None:
        self._folder = folder
        self._limits = limits
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        for left in folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(left, ignore_errors=True)

    def receive(self, archive: Path) -> Received:
        """Unpack an archive and keep what it holds. Blocks.

        Raises:
            GnomonError: 422, saying what is wrong with it; nothing of it is kept.

        """
        incoming = self._folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        try:
            unpack(archive, incoming, self._limits)
            config = _read_config(incoming / CONFIG)
            context = incoming / "context"
            template = recognise(context)
            _check_handler(context / HANDLER_FOLDER / "handler.py")
            requirements = read_requirements(_read(context / HANDLER_FOLDER / "requirements.txt") or b"")
            content = Content(content_id(context / HANDLER_FOLDER, template), template, requirements.environment_id)
            self._keep(context, incoming / "kept", content)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return Received(config["image"], config["buildArgs"], content, requirements)

    def _keep(self, context: Path, staged: Path, content: Content) -> None:
        final = self._folder / content.content_id
        if final.is_dir():
            self.use(content.content_id)
            return
        staged.mkdir()
        staged.chmod(0o755)
        (context / HANDLER_FOLDER).rename(staged / HANDLER_FOLDER)
        (staged / "content.json").write_text(json.dumps(asdict(content)))
        try:
            staged.rename(final)
        except OSError:
            if not final.is_dir():  # the same content, kept by another build meanwhile, is as good
                raise

    def find(self, content_id: str) -> Content | None:
        """What is kept under an id."""
        try:
            return Content(**json.loads(self._description(content_id).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def use(self, content_id: str) -> None:
        """Note that it is in use now."""
        dates.touch(self._description(content_id))

    def idle_s(self, content_id: str) -> float:
        """How long it has not been used."""
        return dates.idle_s(self._description(content_id))

    def _description(self, content_id: str) -> Path:
        return self._folder / content_id / "content.json"

    def handler_folder(self, content_id: str) -> Path:
        return self._folder / content_id / HANDLER_FOLDER

    def ids(self) -> set[str]:
        """Everything that is kept."""
        return {entry.name for entry in self._folder.iterdir() if not entry.name.startswith(".")}

    def remove(self, content_id: str) -> None:
        """Forget a folder: renamed first, so that nobody finds half of it."""
        doomed = self._folder / f"{TEMPORARY}{uuid.uuid4().hex}"
        (self._folder / content_id).rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def content_id(folder: Path, template: str) -> str:
    """SHA-256 over the template's name and every file's path, executable bit, length and bytes, sorted by path."""
    digest = hashlib.sha256(f"{template}\n".encode())
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        status = path.stat()
        digest.update(f"{path.relative_to(folder)}\0{status.st_mode & 0o111:o}\0{status.st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def recognise(context: Path) -> str:
    """The template that a build context was made from.

    Raises:
        GnomonError: 422 `unsupported_template`, naming those that this platform builds.

    """
    language = _language(context / "template.yml")
    if language in TEMPLATES and (context / HANDLER_FOLDER / "handler.py").is_file():
        return language
    if language in TEMPLATES:
        raise GnomonError(422, "no_handler", "The archive has no context/function/handler.py.", "Is `handler:` the right folder?")
    what = f"of the template {language!r}" if language else "made from a Dockerfile of its own"
    raise GnomonError(
        422,
        "unsupported_template",
        f"This platform has no containers and cannot build a function {what}.",
        f"It builds handlers of: {', '.join(TEMPLATES)}.",
    )


def _read(path: Path) -> bytes | None:
    """A file's first bytes, one more than any document here may have; None where there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(MAX_DOCUMENT_BYTES + 1)


def _language(path: Path) -> str | None:
    try:
        document = yaml.safe_load(_read(path) or b"")
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    language = document.get("language") if isinstance(document, dict) else None
    return language if isinstance(language, str) else None


def _check_handler(path: Path) -> None:
    """A syntax error is found now and not when the first instance starts."""
    source = _read(path) or b""
    if len(source) > MAX_DOCUMENT_BYTES:
        raise GnomonError(422, "bad_handler", "function/handler.py has more than 1 MiB.", "Move data into files beside it.")
    try:
        ast.parse(source, "function/handler.py")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        what = f"function/handler.py is not Python: {where}."
        raise GnomonError(422, "bad_handler", what, "Correct it and build again.") from error


def _read_config(path: Path) -> dict[str, Any]:
    """The image name and the build arguments."""
    try:
        config = json.loads(_read(path) or b"null")
    except (ValueError, RecursionError):
        config = None
    image = config.get("image") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(image, str) or not image:
        raise GnomonError(422, "bad_archive", f"The archive has no {CONFIG} that names an image.", "Send what faas-cli sends.")
    arguments = config.get("buildArgs")
    named = arguments.items() if isinstance(arguments, dict) else ()
    return {"image": image, "buildArgs": {str(name): str(value) for name, value in named}}
