"""stack.yml, OpenFaaS's file of functions, read whole.

    version: 1.0                      # the only one
    provider:
      name: openfaas                  # the only one
      gateway: http://127.0.0.1:8080
    functions:
      echo:
        lang: python3-http            # the template to build with; `dockerfile` for one's own
        handler: ./echo
        image: echo:latest
        fprocess: python index.py     # else the template's
        environment: {LOG: debug}
        environment_file: [env.yml]   # wins over `environment`

Reading follows faas-cli: `${VAR:-x}` is substituted first, keys it does not know are left alone, texts stay as they are written.
What is wrong in it is told with its line. A key that nothing reads is a warning with the nearest known one (`Stack.warnings`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gnomon_cli.errors import CommandFailed
from gnomon_cli.shell_pattern import filter_matches
from gnomon_cli.substitution import substitute
from gnomon_cli.yaml_text import Value, read_yaml
from gnomon_core.nearest_names import did_you_mean

SCHEMA_VERSION = "1.0"
PROVIDER = "openfaas"
DEFAULT_FILES = ("stack.yaml", "stack.yml")
ROOT_KEYS = ("version", "provider", "functions", "configuration")
FUNCTION_KEYS = (
    "annotations", "build_args", "build_options", "build_secrets", "constraints", "environment", "environment_file", "fprocess",
    "handler", "image", "labels", "lang", "limits", "name", "namespace", "platforms", "readonly_root_filesystem", "registry",
    "requests", "secrets", "skip_build",
)  # fmt: skip
"""Of faas-cli, whether Gnomon has a use for them or not."""
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Resources:
    """`limits` or `requests`: texts such as 128Mi and 100m."""

    memory: str = ""
    cpu: str = ""


@dataclass(frozen=True, slots=True)
class StackFunction:
    """One entry under `functions`. None means not written, where that differs from empty."""

    name: str
    line: int
    lang: str
    handler: str
    image: str
    fprocess: str
    namespace: str
    environment: Mapping[str, str]
    environment_file: tuple[str, ...]
    secrets: tuple[str, ...]
    constraints: tuple[str, ...] | None
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    limits: Resources
    requests: Resources
    readonly_root_filesystem: bool
    skip_build: bool
    build_args: Mapping[str, str]
    build_options: tuple[str, ...]
    platforms: str

    @property
    def has_template(self) -> bool:
        return bool(self.lang) and self.lang.lower() != "dockerfile"


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """Where a template can be pulled from."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack file. `folder` is where it lies: paths are looked for in the working directory first, then there."""

    file: str
    folder: Path
    gateway: str
    functions: tuple[StackFunction, ...]
    templates: tuple[TemplateSource, ...]
    copy: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def resolve(self, path: str) -> Path:
        """A path of the file. faas-cli knows only the working directory; what is there comes first."""
        return Path(path) if Path(path).exists() or not (self.folder / path).exists() else self.folder / path


def default_file(folder: Path) -> str | None:
    """The stack file that is used when none is named."""
    return next((name for name in DEFAULT_FILES if (folder / name).is_file()), None)


def load_stack(path: str, environment: Mapping[str, str] | None) -> Stack:
    """The stack file at a path; `environment` is what `${…}` is taken from, None to leave it alone.

    Raises:
        CommandFailed: It cannot be read, or something in it is wrong, with the line.

    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise CommandFailed(f"{path}: {error.strerror or error}.", "Name the stack file with -f.") from None
    except UnicodeDecodeError:
        raise CommandFailed(f"{path} is not UTF-8 text.") from None
    return parse_stack(text, path, environment)


def parse_stack(text: str, file: str, environment: Mapping[str, str] | None) -> Stack:
    """The stack that a text describes; see `load_stack`."""
    if environment is not None:
        try:
            text = substitute(text, environment)
        except CommandFailed as error:
            raise CommandFailed(f"{file}: {error.message}") from None
    root = read_yaml(text, file)
    version = root.get("version")
    if version.text() not in {"", SCHEMA_VERSION}:
        raise version.error(f"is {version.text()!r}.", f"The only one is {SCHEMA_VERSION}.")
    provider = root.get("provider")
    name = provider.get("name")
    if name.text() != PROVIDER:
        raise name.error(f"is {name.text()!r}.", f"It must be {PROVIDER}, as in `provider: {{name: {PROVIDER}}}`.")
    configuration = root.get("configuration")
    return Stack(
        file=file,
        folder=Path(file).parent,
        gateway=provider.get("gateway").text(),
        functions=tuple(_function(name, value) for name, value in root.get("functions").fields().items()),
        templates=tuple(
            TemplateSource(item.get("name").text(), item.get("source").text()) for item in configuration.get("templates").items()
        ),
        copy=configuration.get("copy").list(),
        warnings=tuple(_unknown_keys(root, ROOT_KEYS))
        + tuple(warning for value in root.get("functions").fields().values() for warning in _unknown_keys(value, FUNCTION_KEYS)),
    )


def select(stack: Stack, pattern: str, regex: str) -> Stack:
    """The stack with only the functions that `--filter` or `--regex` name.

    Raises:
        CommandFailed: Both are given, the regex cannot be read, or nothing matches.

    """
    if pattern and regex:
        raise CommandFailed("--filter and --regex are given together.", "Use one of them.")
    if not pattern and not regex:
        return stack
    try:
        expression = re.compile(regex)
    except re.error as error:
        raise CommandFailed(f"--regex {regex!r}: {error}.") from None
    chosen = tuple(
        function
        for function in stack.functions
        if (expression.search(function.name) if regex else filter_matches(pattern, function.name))
    )
    if not chosen:
        names = ", ".join(function.name for function in stack.functions) or "none"
        raise CommandFailed(f"No function in {stack.file} matches {(pattern or regex)!r}.", f"It has: {names}.")
    return replace(stack, functions=chosen)


def _function(name: str, value: Value) -> StackFunction:
    if not _NAME.fullmatch(name):
        raise value.error("is not a function name.", "Use lower-case letters, digits and '-' inside.")
    constraints = value.get("constraints")
    return StackFunction(
        name=name,
        line=value.line,
        lang=value.get("lang").text(),
        handler=value.get("handler").text(),
        image=_image(value),
        fprocess=value.get("fprocess").text(),
        namespace=value.get("namespace").text(),
        environment=value.get("environment").texts() or {},
        environment_file=value.get("environment_file").list(),
        secrets=value.get("secrets").list(),
        constraints=None if constraints.absent else constraints.list(),
        labels=value.get("labels").texts() or {},
        annotations=value.get("annotations").texts() or {},
        limits=_resources(value.get("limits")),
        requests=_resources(value.get("requests")),
        readonly_root_filesystem=value.get("readonly_root_filesystem").flag(),
        skip_build=value.get("skip_build").flag(),
        build_args=value.get("build_args").texts() or {},
        build_options=value.get("build_options").list(),
        platforms=value.get("platforms").text(),
    )


def _unknown_keys(value: Value, known: Collection[str]) -> Iterator[str]:
    """A warning for each key that nothing reads. `x-…` is left to whoever wrote it, as in a Compose file."""
    for key, entry in value.fields().items():
        if key not in known and not key.startswith(("x-", ".")):
            hint = did_you_mean(key, known) or f"Known ones: {', '.join(known)}."
            yield f"{entry.error('is not a key of a stack file and is ignored.').message} {hint}"


def _image(value: Value) -> str:
    """The image with its tag, `latest` where none is written; empty where there is no image at all."""
    image = value.get("image").text()
    return image if not image or ":" in image.rsplit("/", 1)[-1] else f"{image}:latest"


def _resources(value: Value) -> Resources:
    return Resources(value.get("memory").text(), value.get("cpu").text())
