"""A handler's requirements as an identity: the same requirements, in any order and with any comments, are one environment.

What the identity cannot see is refused: another requirements file, a path of this machine, an editable install, a variable. Two
functions with the same text would share an environment that differs. So are URLs of this machine and of its link: services there
trust every local client.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import re
import socket
import sys
import sysconfig
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from gnomon_core.errors import GnomonError

MAX_BYTES = 256 << 10
_LAST_PORT = 65_535
_COMMENT = re.compile(r"(^|\s+)#.*$")
_VARIABLE = re.compile(r"\$\{")
_URL = re.compile(
    r"(?<![a-z0-9.-])(?:[a-z]+\+)?(https?|ssh|git|ftp|socks5h?|[a-z][a-z0-9+.-]*(?=://)):([^\s'\"]*)", re.IGNORECASE
)
"""A URL with or without slashes: uv reads `http:127.0.0.1` as a browser does."""
_AUTHORITY = re.compile(r"//([^/\\?#]+)")
_LOCAL_NAMES = ("localhost", "localhost.localdomain", "localhost6", "ip6-localhost", "ip6-loopback")
DEFAULT_PORTS = {"http": 80, "https": 443, "ssh": 22, "git": 9418, "ftp": 21, "socks5": 1080, "socks5h": 1080}
_OTHER_FILE = re.compile(r"-[rce]|--(requirement|constraint|editable)\b|\.")


@dataclass(frozen=True, slots=True)
class Requirements:
    """Normalised requirement lines: no comments, no blank lines, sorted, each once. Options keep their order before them."""

    lines: tuple[str, ...]

    @property
    def environment_id(self) -> str:
        """Hash that identifies the environment: these lines for this Python on this kind of machine."""
        python = f"{sys.implementation.cache_tag} {sysconfig.get_platform()}"
        return hashlib.sha256("\n".join((python, *self.lines)).encode()).hexdigest()

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    async def check_hosts(self) -> None:
        """Refuse names of URLs that mean this machine or its link. One that has no address here is a proxy's to look up.

        Raises:
            GnomonError: 422 `bad_requirements`, with the line.

        """
        for line in self.lines:
            for host, port in endpoints(line):
                try:
                    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
                except (OSError, UnicodeError):
                    continue
                if any(_is_local(str(address[0])) for *_, address in found):
                    raise _local(line)


def endpoints(text: str) -> list[tuple[str, int]]:
    """The hosts and ports of all URLs in a text, such as a line of requirements or a setting.

    Raises:
        ValueError: something begins as a URL and names no host, or no port that is one.

    """
    found = []
    for scheme, rest in _URL.findall(text):
        authority = _AUTHORITY.match(rest)
        if authority is None:
            raise ValueError(f"{scheme}: names no host")
        name = authority[1].rpartition("@")[2]
        host, _, port = name.partition("]" if name.startswith("[") else ":")
        port = port.removeprefix(":")
        host = unicodedata.normalize("NFKC", unquote(host.strip("[]"))).lower().rstrip(".")
        if not host or (port and not (port.isascii() and port.isdigit() and int(port) <= _LAST_PORT)):
            raise ValueError(f"{scheme}: names no host and port")
        found.append((host, int(port) if port else DEFAULT_PORTS.get(scheme.lower(), 443)))
    return found


def _is_local(host: str) -> bool:
    """True if a name or an address, in any notation, means this machine or one that only its link reaches."""
    if host in _LOCAL_NAMES or host.endswith(".localhost"):
        return True
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast


def read_requirements(content: bytes) -> Requirements:
    """The requirements of a requirements.txt.

    Raises:
        GnomonError: 422 `bad_requirements`, with the line.

    """
    if len(content) > MAX_BYTES:
        raise _refuse(f"has more than {MAX_BYTES} bytes", "Name only what the handler needs.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refuse("is not UTF-8", "Save it as UTF-8.") from None
    options: list[str] = []
    packages: set[str] = set()
    for line in _logical_lines(text):
        if _is_elsewhere(line):
            raise _refuse(f"says {line[:100]!r}, which is outside of it", "Name packages of an index, or a URL with a version.")
        _check_urls(line)
        if line.startswith("-"):
            options.append(line)
        else:
            packages.add(line)
    return Requirements((*options, *sorted(packages)))


def _is_elsewhere(line: str) -> bool:
    """True if a line means a file of some machine: an option for one, or a path, or a file's URL."""
    return (
        bool(_OTHER_FILE.match(line) or _VARIABLE.search(line)) or "file:" in line.lower() or ("/" in line and "://" not in line)
    )


def _check_urls(line: str) -> None:
    try:
        hosts = [host for host, _ in endpoints(line)]
    except ValueError as error:
        raise _refuse(f"says {line[:100]!r}: {error}", "Write URLs as scheme://host/path.") from None
    if any(_is_local(host) for host in hosts):
        raise _local(line)


def _local(line: str) -> GnomonError:
    return _refuse(
        f"says {line[:100]!r}, whose address is this machine's or its link's",
        "The gateway's operator can name such an index in its environment, as UV_DEFAULT_INDEX.",
    )


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without comments, those that end in a backslash joined with the next."""
    joined = ""
    for line in text.splitlines():
        joined += _COMMENT.sub("", line)
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        if joined.strip():
            yield " ".join(joined.split())
        joined = ""
    if joined.strip():
        yield " ".join(joined.split())


def _refuse(what: str, hint: str) -> GnomonError:
    return GnomonError(422, "bad_requirements", f"function/requirements.txt {what}.", hint)
