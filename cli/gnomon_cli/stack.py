"""stack.yml, OpenFaaS's file of functions: variables are substituted, the YAML is read, and its entries become values.

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

An error names the line. Keys that faas-cli does not know are ignored, with a warning and the nearest known key
(`Stack.warnings`).

Substitution, as in faas-cli, goes through the whole text, comments and keys included. An unset variable is empty. `$$` is a
dollar; a backslash before a backslash or a slash is dropped. The forms are bash's, with two peculiarities of the library that
faas-cli uses: `:-`, `:=`, `:?`, `:+` and `=` all mean "or else this", and a form without its closing brace is an error.

    ${V}  ${V:-x}  ${V:=x}  ${V=x}      the value, or x when it is empty; x may hold further ${...}
    ${#V}                               its length in bytes
    ${V,} ${V,,} ${V^} ${V^^}           the first letter or all of it in lower or upper case
    ${V:2} ${V:2:3}                     its bytes from the third, at most three of them
    ${V/a/b} ${V//a/b} ${V/#a/b} ${V/%a/b}   replace the first, all, the beginning, the end
    ${V#p} ${V##p} ${V%p} ${V%%p}       without the shortest or longest beginning or end that matches the shell pattern p

One more difference: faas-cli reverses the pattern of an end, so that `[a-z]` in it matches nothing; here it does, as in bash.

Scalars stay as they are written: `1.0` stays "1.0", `yes` stays "yes" and `0644` stays "0644", because Go decodes them into
maps of strings. Python's YAML loaders would make 1.0, True and 420 of them, so the node graph is read. Nulls are empty texts in
a map and absent elsewhere; merge keys (`<<`) and anchors work; a key that is written twice is an error with both lines.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gnomon_cli.output import CommandFailed
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
"""The keys of a function in faas-cli's stack file, whether Gnomon uses them or not."""
DOWNLOAD_TIMEOUT_S = 30.0
MAX_DOWNLOAD_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Resources:
    """`limits` or `requests`: texts such as 128Mi and 100m."""

    memory: str = ""
    cpu: str = ""


@dataclass(frozen=True, slots=True)
class StackFunction:
    """An entry under `functions`. None means that the key is absent, where that differs from empty."""

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
    """A source that a template can be pulled from."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack file. `folder` is where it lies: paths are looked for in the working directory first, then there.

    One that was downloaded has the working directory only.
    """

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


def is_url(file: str) -> bool:
    """Return whether a stack file is named by its URL, not by its path."""
    return file.startswith(("http://", "https://"))


def default_file(folder: Path) -> str | None:
    """The stack file that is used when none is named."""
    return next((name for name in DEFAULT_FILES if (folder / name).is_file()), None)


def load_stack(file: str, environment: Mapping[str, str] | None) -> Stack:
    """The stack file at a path or a URL; `environment` is what `${…}` is taken from, None to leave it alone.

    Raises:
        CommandFailed: It cannot be read, or something in it is wrong, with the line.

    """
    try:
        content = _downloaded(file) if is_url(file) else Path(file).read_bytes()
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise CommandFailed(f"{file} is not UTF-8 text.") from None
    except HTTPError as error:
        raise CommandFailed(f"{file}: the server answers {error.code} {error.reason}.", "Name the stack file with -f.") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "reason", None) or error
        raise CommandFailed(f"{file}: {reason}.", "Name the stack file with -f.") from None
    return parse_stack(text, file, environment)


def _downloaded(url: str) -> bytes:
    with urlopen(url, timeout=DOWNLOAD_TIMEOUT_S) as answer:  # noqa: S310 - the caller has checked the scheme
        content: bytes = answer.read(MAX_DOWNLOAD_BYTES + 1)
    if len(content) > MAX_DOWNLOAD_BYTES:
        raise CommandFailed(f"{url} is larger than {MAX_DOWNLOAD_BYTES} bytes.", "Name the address of the file itself.")
    return content


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
        folder=Path() if is_url(file) else Path(file).parent,
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
    """A warning for each unknown key. Keys that begin with `x-` are extensions, as in a Compose file."""
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


_VARIABLE = re.compile(r"[^\W]+")
_PLAIN = re.compile(r"(?:(?!\$\{|\$\$|\\[\\/]).)+", re.DOTALL)
_ESCAPE = re.compile(r"\$(\$)|\\([\\/])")
_DEFAULT = re.compile(r":[-=?+]|=")
_REPLACE = re.compile(r"/[/#%]?")
_SLASHES = re.compile(r"/+")
_CASING = re.compile(r"[,^]{1,2}")
_TRIM = re.compile(r"##?|%%?")
_INTEGER = re.compile(r"[-+]?[0-9]+")


def substitute(text: str, environment: Mapping[str, str]) -> str:
    """The text with every form replaced.

    Raises:
        CommandFailed: A form is not one of the above, with the line it is on.

    """
    return _Reader(text, environment).everything()


@dataclass(slots=True)
class _Reader:
    """A single pass over the text, from left to right."""

    text: str
    environment: Mapping[str, str]
    at: int = 0

    def everything(self) -> str:
        parts: list[str] = []
        while self.at < len(self.text):
            if self.text.startswith("${", self.at):
                parts.append(self._form())
            else:
                parts.append(self._escape() or self._take(_PLAIN) or self._any())
        return "".join(parts)

    def _form(self) -> str:
        """`${…}`, beginning at the dollar."""
        begin = self.at
        self.at += 2
        counted = self._accept("#")
        named = self._value(begin)
        value = str(len(named.encode())) if counted else self._apply(named, begin)
        if not self._accept("}"):
            raise self._error(begin)
        return value

    def _value(self, begin: int) -> str:
        name = self._take(_VARIABLE)
        if not name:
            raise self._error(begin)
        return self.environment.get(name, "")

    def _apply(self, value: str, begin: int) -> str:
        if self._take(_DEFAULT):
            other = self._words(begin)
            return value or other
        if operator := self._take(_REPLACE):
            return self._replaced(value, operator, begin)
        if operator := self._take(_CASING):
            return _CASES.get(operator, str)(value)
        if operator := self._take(_TRIM):
            trim = trim_prefix if operator[0] == "#" else trim_suffix
            return trim(value, self._word("}", begin), longest=len(operator) > 1)
        if self._accept(":"):
            position = self._word(":}", begin)
            length = self._word("}", begin) if self._accept(":") else None
            return _substring(value, position, length)
        return value

    def _replaced(self, value: str, operator: str, begin: int) -> str:
        old = self._word("/", begin, escapes=True)
        if not self._take(_SLASHES):
            raise self._error(begin)
        absent = self.text.startswith("}", self.at)
        new = "" if absent else self._word("}", begin, escapes=True)
        if operator == "//":
            return value.replace(old, new)
        if operator == "/":
            return value.replace(old, new, 1)
        if absent:
            return value
        if operator == "/#":
            return value.replace(old, new, 1) if value.startswith(old) else value
        return value.removesuffix(old) + new if value.endswith(old) else value

    def _words(self, begin: int) -> str:
        """Texts and further forms up to the closing brace, which is left."""
        parts: list[str] = []
        while not self.text.startswith("}", self.at):
            parts.append(self._word("}", begin))
        return "".join(parts)

    def _word(self, stop: str, begin: int, *, escapes: bool = False) -> str:
        """A text up to a character of `stop`, or a single form. Raises if it is empty."""
        if self.text.startswith("${", self.at):
            return self._form()
        parts: list[str] = []
        while self.at < len(self.text) and not self.text.startswith("${", self.at):
            part = self._escape() if escapes else ""
            if not part:
                if self.text[self.at] in stop:
                    break
                part = self._any()
            parts.append(part)
        if not parts:
            raise self._error(begin)
        return "".join(parts)

    def _escape(self) -> str:
        found = _ESCAPE.match(self.text, self.at)
        if not found:
            return ""
        self.at = found.end()
        return found[1] or found[2]

    def _any(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if not found:
            return ""
        self.at = found.end()
        return found[0]

    def _accept(self, character: str) -> bool:
        if not self.text.startswith(character, self.at):
            return False
        self.at += 1
        return True

    def _error(self, begin: int) -> CommandFailed:
        line = self.text.count("\n", 0, begin) + 1
        shown = self.text[begin : begin + 40].split("\n", 1)[0]
        return CommandFailed(
            f"line {line}: {shown!r} is not a substitution.",
            "Write ${NAME} or ${NAME:-default}; $$ for a dollar itself; or pass --no-envsubst.",
        )


def _substring(value: str, position: str, length: str | None) -> str:
    """Bytes from a position; a position or length that is no number (` -2` is none) leaves the value as it is."""
    if not _INTEGER.fullmatch(position) or (length is not None and not _INTEGER.fullmatch(length)):
        return value
    data = value.encode()
    begin = int(position) if int(position) >= 0 else max(0, len(data) + int(position))
    end = len(data) if length is None else begin + max(0, int(length))
    return data[begin:end].decode(errors="replace")


_CASES: Mapping[str, Callable[[str], str]] = {
    ",": lambda text: text[:1].lower() + text[1:],
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    "^^": str.upper,
}


def trim_prefix(value: str, pattern: str, *, longest: bool) -> str:
    """The value without the prefix that matches a shell pattern: `*`, `?`, `[a-c]`. Nothing is removed if nothing matches."""
    lengths = range(len(value), 0, -1) if longest else range(1, len(value) + 1)
    return next((value[length:] for length in lengths if fnmatchcase(value[:length], pattern)), value)


def trim_suffix(value: str, pattern: str, *, longest: bool) -> str:
    """The value without the suffix that matches a shell pattern."""
    begins = range(len(value)) if longest else range(len(value) - 1, -1, -1)
    return next((value[:begin] for begin in begins if fnmatchcase(value[begin:], pattern)), value)


def filter_matches(pattern: str, name: str) -> bool:
    """True if a function's name matches a `--filter`, in which `*` is the only wildcard."""
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), name, re.DOTALL) is not None


_TAG = "tag:yaml.org,2002:"
_NULL, _MERGE, _BINARY = f"{_TAG}null", f"{_TAG}merge", f"{_TAG}binary"
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_OLD_TRUE = frozenset({"y", "Y", "yes", "Yes", "YES", "on", "On", "ON"})
_OLD_FALSE = frozenset({"n", "N", "no", "No", "NO", "off", "Off", "OFF"})


@dataclass(frozen=True, slots=True)
class Value:
    """A node of a file, with the path of keys that leads to it."""

    file: str
    path: str
    node: Node | None

    @property
    def line(self) -> int:
        return self.node.start_mark.line + 1 if self.node is not None else 0

    @property
    def absent(self) -> bool:
        return self.node is None or self.node.tag == _NULL

    def error(self, problem: str, hint: str = "") -> CommandFailed:
        """`stack.yml:12: functions.echo.labels must be …`."""
        where = f"{self.file}:{self.line}" if self.node is not None else self.file
        return CommandFailed(f"{where}: {self.path or 'the file'} {problem}", hint)

    def fields(self) -> dict[str, Value]:
        """The entries of a mapping, in the file's order; none where it is absent."""
        if self.absent:
            return {}
        if not isinstance(self.node, MappingNode):
            raise self.error("must be a mapping, `key: value`.")
        return {key: Value(self.file, f"{self.path}.{key}".lstrip("."), node) for key, node in self._entries(self.node).items()}

    def get(self, key: str) -> Value:
        """The entry of a mapping with this key; a `Value` of None if it is absent."""
        return self.fields().get(key, Value(self.file, f"{self.path}.{key}".lstrip("."), None))

    def text(self) -> str:
        """A scalar as the file has it; empty where it is absent."""
        if self.absent:
            return ""
        if not isinstance(self.node, ScalarNode):
            raise self.error("must be one value, not a list or a mapping.")
        if self.node.tag == _BINARY:
            return self._decoded(self.node.value)
        return str(self.node.value)

    def texts(self) -> dict[str, str] | None:
        """A mapping of texts; None where it is absent."""
        return None if self.absent else {key: value.text() for key, value in self.fields().items()}

    def items(self) -> tuple[Value, ...]:
        """The items of a list; none where it is absent."""
        if self.absent:
            return ()
        if not isinstance(self.node, SequenceNode):
            raise self.error("must be a list, one `- item` a line.")
        return tuple(Value(self.file, f"{self.path}[{index}]", node) for index, node in enumerate(self.node.value))

    def list(self) -> tuple[str, ...]:
        """A list of texts."""
        return tuple(item.text() for item in self.items())

    def flag(self) -> bool:
        """True or false, also as YAML 1.1 wrote it; false where it is absent. A quoted "true" is a text and no flag."""
        text = self.text()
        plain = isinstance(self.node, ScalarNode) and self.node.style is None
        if text in _OLD_TRUE or (plain and text in _TRUE):
            return True
        if self.absent or text in _OLD_FALSE or (plain and text in _FALSE):
            return False
        raise self.error(f"is {text!r}.", "It must be true or false, without quotes.")

    def _decoded(self, text: str) -> str:
        """`!!binary aGk=` is hi."""
        try:
            return base64.b64decode(text, validate=True).decode()
        except ValueError:
            raise self.error("is !!binary, but not the base64 of a text.") from None

    def _entries(self, mapping: MappingNode) -> dict[str, Node]:
        """Keys and nodes; what is written here wins over what is merged in, an earlier merge over a later one."""
        direct: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        lines: dict[str, int] = {}
        for key, node in mapping.value:
            if key.tag == _MERGE:
                for part in node.value if isinstance(node, SequenceNode) else [node]:
                    if not isinstance(part, MappingNode):
                        raise self.error("merges (`<<`) something that is no mapping.")
                    merged = self._entries(part) | merged
                continue
            if not isinstance(key, ScalarNode) or key.tag == _NULL:
                raise self.error("has a key that is not a text.")
            name, line = str(key.value), key.start_mark.line + 1
            if name in lines:
                raise self.error(f"has {name!r} on line {lines[name]} and again on line {line}.")
            direct[name], lines[name] = node, line
        return merged | direct


def read_yaml(text: str, file: str) -> Value:
    """The first document of a text.

    Raises:
        CommandFailed: It is not YAML, with the line.

    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_node() if loader.check_node() else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{file}:{mark.line + 1}" if mark else file
        raise CommandFailed(
            f"{where}: {error.problem or error.context}.", "Check the indentation and the quotes there."
        ) from None
    except yaml.YAMLError as error:
        raise CommandFailed(f"{file}: {str(error).splitlines()[0]}.", "The file must be UTF-8 text.") from None
    except RecursionError:
        raise CommandFailed(f"{file} is nested too deeply.", "Close its brackets.") from None
    finally:
        loader.dispose()
    return Value(file, "", node)
