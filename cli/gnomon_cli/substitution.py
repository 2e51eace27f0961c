"""`${VAR:-default}` in a stack file, as faas-cli substitutes it before the YAML is read.

The whole text goes through: comments and keys as well. `$$` is a dollar that stands for itself; a backslash before a
backslash or a slash is dropped.
A variable that is not set is empty. The forms are bash's, with the two peculiarities of the library that faas-cli uses: `:-`,
`:=`, `:?`, `:+` and `=` all mean "or else this", and a form without its closing brace is an error.

    ${V}  ${V:-x}  ${V:=x}  ${V=x}      the value, or x when it is empty; x may hold further ${...}
    ${#V}                               its length in bytes
    ${V,} ${V,,} ${V^} ${V^^}           the first letter or all of it in lower or upper case
    ${V:2} ${V:2:3}                     its bytes from the third, at most three of them
    ${V/a/b} ${V//a/b} ${V/#a/b} ${V/%a/b}   replace the first, all, the beginning, the end
    ${V#p} ${V##p} ${V%p} ${V%%p}       without the shortest or longest beginning or end that matches the pattern
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gnomon_cli.errors import CommandFailed
from gnomon_cli.shell_pattern import trim_prefix, trim_suffix

_NAME = re.compile(r"[^\W]+")
_TEXT = re.compile(r"(?:(?!\$\{|\$\$|\\[\\/]).)+", re.DOTALL)
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
    """One pass over the text, from left to right."""

    text: str
    environment: Mapping[str, str]
    at: int = 0

    def everything(self) -> str:
        parts: list[str] = []
        while self.at < len(self.text):
            if self.text.startswith("${", self.at):
                parts.append(self._form())
            else:
                parts.append(self._escape() or self._take(_TEXT) or self._any())
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
        name = self._take(_NAME)
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
        """One text up to a character of `stop`, or one form. It may not be empty."""
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
