"""Runs a command of a build: in the sandbox, as the build user, under a time limit, with its output as lines of the log.

A package that is built from source runs its author's code. It gets none of our environment variables, sees nothing of Gnomon's
state but its own folder, and is ended with everything it started when its time is over or the client leaves. It connects only to
the ports of package indexes, of proxies and of the URLs in its requirements (Linux 6.7), not to databases and the like that trust
whoever is on the machine.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_core.launch import Limits, Sandbox
from gnomon_platforms.local.builder.requirements import endpoints

Log = Callable[[str], None]
LINE_CHARACTERS = 2000
"""A longer line is cut. faas-cli's reader gives up at 64 KiB."""
TIME_IS_OVER = 124
END_S = 5.0
GRACE_S = 10.0

PASSED_ON = (
    "ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_DIR", "SSL_CERT_FILE",
    "UV_DEFAULT_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_HTTP_TIMEOUT", "UV_INDEX", "UV_INDEX_STRATEGY",
    "UV_INDEX_URL", "UV_NO_INDEX", "UV_OFFLINE", "UV_SYSTEM_CERTS", "UV_TORCH_BACKEND",
)  # fmt: skip
PIP_NAMES = {
    "PIP_EXTRA_INDEX_URL": "UV_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
}
"""What an operator has set for pip, under uv's names."""
UV_CONFIGURATION = (Path("/etc/uv/uv.toml"), Path("/etc/xdg/uv/uv.toml"))
"""Where an operator may have named indexes for every user of the machine."""
PORTS = frozenset({53, 80, 443})
"""Of names whose answer is too long for UDP, and of indexes."""


def settings_for_builds(environment: Mapping[str, str]) -> dict[str, str]:
    """The operator's settings of proxies and package indexes, and nothing else of an environment."""
    settings = {uv: environment[pip] for pip, uv in PIP_NAMES.items() if pip in environment}
    for name in PASSED_ON:
        for spelling in (name, name.lower()):
            if spelling in environment:
                settings[spelling] = environment[spelling]
    return settings


@dataclass(frozen=True, slots=True)
class Runner:
    """How commands of a build run: as whom, for how long, and with what settings."""

    uid: int | None
    time_limit_s: float
    settings: Mapping[str, str]
    hidden: tuple[Path, ...] = ()

    async def run(self, command: Sequence[str], work: Path, readable: Sequence[Path], log: Log, urls: str = "") -> None:
        """Run a command whose only writable folder is `work`. `urls` is a text with the URLs that it may reach besides indexes.

        Raises:
            GnomonError: 422 `build_failed` or `build_timeout`; the output went to `log`.

        """
        sandbox = Sandbox(
            uid=self.uid,
            readable=tuple(str(path) for path in readable)
            + tuple(path for path in self.settings.values() if path.startswith("/")),
            writable=(str(work),),
            hidden=tuple(str(path) for path in self.hidden),
            tcp_ports=tuple(sorted(self._ports(urls))),
            limits=Limits(wall_s=self.time_limit_s, open_files=4096),
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", "gnomon_runtime.sandbox", sandbox.to_json(), "--", *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd="/",
            env=self._environment(work),
        )  # fmt: skip
        assert process.stdout is not None
        last = ""
        try:
            # The sandbox keeps the limit; this one is for a sandbox that does not.
            async with asyncio.timeout(self.time_limit_s + GRACE_S):
                async for line in _lines(process.stdout):
                    log(line)
                    last = line or last
                status = await process.wait()
        except TimeoutError:
            status = TIME_IS_OVER
        finally:
            await _end(process)
        if status == TIME_IS_OVER:
            raise GnomonError(
                422,
                "build_timeout",
                f"The requirements were not installed within {self.time_limit_s:g} s.",
                "Ask for fewer or prebuilt packages, or raise the limit of builds.",
            )
        if status != 0:
            what = last.strip().removeprefix("cause: ").rstrip(".")
            raise GnomonError(422, "build_failed", f"The requirements cannot be installed: {what}.", "The build's log says more.")

    def _ports(self, urls: str) -> set[int]:
        ports = set(PORTS)
        configured = (path.read_text(encoding="utf-8", errors="replace") for path in UV_CONFIGURATION if path.is_file())
        for text in (urls, *self.settings.values(), *configured):
            for word in text.replace(",", " ").split():
                # What an operator writes is read by uv, and need not please us.
                with suppress(ValueError):
                    ports |= {port for _, port in endpoints(word)}
        return ports

    def _environment(self, work: Path) -> dict[str, str]:
        return {
            **self.settings,
            "UV_CACHE_DIR": str(work / "cache"),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": str(work / "home"),
            "TMPDIR": str(work / "tmp"),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "UV_NO_PROGRESS": "1",
            "UV_PYTHON_DOWNLOADS": "never",
        }


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of a program's output, whatever their length and bytes."""
    rest = ""
    while data := await stream.read(1 << 16):
        *lines, rest = (rest + data.decode("utf-8", "replace").replace("\r", "\n")).split("\n")
        rest = rest[:LINE_CHARACTERS]
        for line in lines:
            if line.strip():
                yield line.rstrip()[:LINE_CHARACTERS]
    if rest.strip():
        yield rest.rstrip()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the sandbox to end everything that it started; it does so at once."""
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.terminate()
    try:
        await asyncio.wait_for(process.wait(), END_S)
    except TimeoutError:
        process.kill()
        await process.wait()
