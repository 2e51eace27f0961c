"""YAML read as text: every scalar as the file has it, and the line it stands on.

A stack file's maps hold texts. `1.0` stays "1.0", `yes` stays "yes" and `0644` stays "0644", because Go decodes into a map of
strings without asking what else the scalar could be. Python's loaders would have made 1.0, True and 420 of them, so this reads
the node graph. Nulls are empty texts in a map and absent elsewhere; merge keys (`<<`) and anchors work; a key that is written
twice is an error with both lines.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from gnomon_cli.errors import CommandFailed

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
        """One entry of a mapping, absent where it is not written."""
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
        own: dict[str, Node] = {}
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
            own[name], lines[name] = node, line
        return merged | own


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
    finally:
        loader.dispose()
    return Value(file, "", node)
