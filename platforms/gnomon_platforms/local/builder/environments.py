"""Python environments for handlers, one for each set of requirements, built once with uv and never changed.

    environments/<environment id>/          the environment; a visible folder is complete
    environments/<environment id>.json      the requirements, and which modules a zygote imports before it forks
    environments/.building-…/               a build in progress, with its download cache; only a SIGKILL leaves one behind

Each build downloads into a cache of its own, because a package that runs code while it is built could poison a cache that others
use. What was built belongs to root when we are root, so no function can change it.

`Runner` runs each command of a build in the sandbox, as the build user, under a time limit, with its output as lines of the log.
A package that is built from source runs its author's code. It gets none of our environment variables, sees nothing of Gnomon's
state but its own folder, and is ended with everything it started when its time is over or the client leaves. It connects only to
the ports of package indexes, of proxies and of the URLs in its requirements (Linux 6.7), not to databases and the like that trust
whoever is on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gnomon_core.atomic_files import replace_file
from gnomon_core.errors import GnomonError
from gnomon_core.launch import Limits, Sandbox
from gnomon_platforms.local.builder.contents import idle_s, touch
from gnomon_platforms.local.builder.requirements import Requirements, endpoints

Result = TypeVar("Result")

TEMPORARY = ".building-"
PRELOADED = ("torch",)
"""Modules whose import takes seconds: a zygote of an environment that has them imports them once for all its instances."""


@dataclass(frozen=True, slots=True)
class Environment:
    """An environment that is ready: its interpreter, and the modules worth importing before instances are forked."""

    environment_id: str
    python: Path
    preload: tuple[str, ...]


class Environments:
    """The store of environments."""

    def __init__(self, folder: Path, runner: Runner) -> None:
        self._folder = folder
        self._runner = runner
        self._building: dict[str, asyncio.Lock] = {}
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        for left in folder.glob(f"{TEMPORARY}*"):
            shutil.rmtree(left, ignore_errors=True)

    def find(self, environment_id: str) -> Environment | None:
        """An environment that was built."""
        python = self._folder / environment_id / "bin" / "python"
        try:
            document = json.loads(self._description(environment_id).read_text())
        except (OSError, ValueError):
            return None
        return Environment(environment_id, python, tuple(document["preload"])) if python.exists() else None

    async def ensure(self, requirements: Requirements, log: Log) -> Environment:
        """The environment with these requirements; builds it if it is missing.

        Raises:
            GnomonError: 422 `build_failed` or `build_timeout`; no partial environment remains.

        """
        environment_id = requirements.environment_id
        async with self._building.setdefault(environment_id, asyncio.Lock()):
            found = self.find(environment_id)
            if found is not None:
                log(f"Environment {environment_id[:12]} is there already.")
                self.use(environment_id)
                return found
            work = self._folder / f"{TEMPORARY}{uuid.uuid4().hex}"
            try:
                await self._build(work, requirements, log)
                await whole(self._keep, work / "environment", requirements)
            finally:
                await whole(partial(shutil.rmtree, work, ignore_errors=True))
        built = self.find(environment_id)
        assert built is not None
        return built

    async def _build(self, work: Path, requirements: Requirements, log: Log) -> None:
        await requirements.check_hosts()
        requirements_file = self._make_work(work, requirements)
        tool, base = _uv(), _base_python()
        readable = (tool, Path(sys.base_prefix), base)
        make = [str(tool), "venv", "--relocatable", "--no-project", "--quiet", "--python", str(base), str(work / "environment")]
        await self._runner.run(make, work, readable, log)
        if not requirements.lines:
            return
        log(f"Installing {len(requirements.lines)} requirement(s) into environment {requirements.environment_id[:12]}.")
        install = [str(tool), "pip", "install", "--compile-bytecode", "--python", str(work / "environment")]
        await self._runner.run([*install, "--requirements", str(requirements_file)], work, readable, log, requirements.text)

    def _make_work(self, work: Path, requirements: Requirements) -> Path:
        """The build user's folder, with the file of the requirements."""
        requirements_file = work / "requirements.txt"
        folders = (work, work / "home", work / "tmp", work / "cache")
        for folder in folders:
            folder.mkdir(mode=0o700)
        requirements_file.write_text(requirements.text)
        if self._runner.uid is not None:
            for path in (*folders, requirements_file):
                os.chown(path, self._runner.uid, self._runner.uid)
        return requirements_file

    def _keep(self, built: Path, requirements: Requirements) -> None:
        """Move an environment into place; the description comes last and makes it findable."""
        environment_id = requirements.environment_id
        make_immutable(built)
        packages = {path.name for path in built.glob("lib/python*/site-packages/*")}
        preload = [name for name in PRELOADED if name in packages]
        description = self._description(environment_id)
        final = self._folder / environment_id
        shutil.rmtree(final, ignore_errors=True)
        built.rename(final)
        document = {"requirements": requirements.lines, "preload": preload}
        replace_file(description, json.dumps(document), durable=False, mode=0o644)

    def _description(self, environment_id: str) -> Path:
        return self._folder / f"{environment_id}.json"

    def ids(self) -> set[str]:
        """Every environment that is kept."""
        return {entry.stem for entry in self._folder.glob("*.json")}

    def use(self, environment_id: str) -> None:
        """Mark the environment as used now."""
        touch(self._description(environment_id))

    def idle_s(self, environment_id: str) -> float:
        """Seconds since the environment was used."""
        return idle_s(self._description(environment_id))

    def remove(self, environment_id: str) -> None:
        """Forget an environment."""
        self._description(environment_id).unlink(missing_ok=True)
        shutil.rmtree(self._folder / environment_id, ignore_errors=True)


async def whole(function: Callable[..., Result], *arguments: Any) -> Result:
    """Run a function in a thread and wait for its end, even if the task is cancelled: the function works on our files."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments))
    try:
        return await asyncio.shield(task)
    finally:
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([task])


def _uv() -> Path:
    """Path of uv, which makes environments.

    Raises:
        GnomonError: 501 `no_builder`, where we were installed without it, as in an image.

    """
    try:
        import uv  # noqa: PLC0415 - only who builds needs it
    except ImportError:
        raise GnomonError(
            501, "no_builder", "Handlers are not built here: uv is not installed.", "Build an image of it, and deploy that."
        ) from None
    return Path(uv.find_uv_bin())


def _base_python() -> Path:
    """The interpreter below every virtual environment: ours must not lend its packages."""
    return Path(getattr(sys, "_base_executable", None) or sys.executable).resolve()


def make_immutable(folder: Path) -> None:
    """Make us the owner of a tree, readable by all users and writable only by us. Links are not followed."""
    uid, gid = os.geteuid(), os.getegid()
    for _, folders, files, descriptor in os.fwalk(folder, follow_symlinks=False):
        os.fchown(descriptor, uid, gid)
        os.fchmod(descriptor, 0o755)
        for name in (*folders, *files):
            mode = os.lstat(name, dir_fd=descriptor).st_mode
            os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
            if stat.S_ISREG(mode):
                os.chmod(name, 0o755 if mode & stat.S_IXUSR else 0o644, dir_fd=descriptor)
            elif not (stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                os.unlink(name, dir_fd=descriptor)


Log = Callable[[str], None]
LINE_CHARACTERS = 2000
"""The most characters of a line of a build's log, which is cut there. faas-cli's reader gives up at 64 KiB."""
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
"""The operator's settings of pip, under uv's names."""
UV_CONFIGURATION = (Path("/etc/uv/uv.toml"), Path("/etc/xdg/uv/uv.toml"))
"""The system-wide configuration files of uv, in which an operator may name package indexes."""
PORTS = frozenset({53, 80, 443})
"""TCP ports that a build may reach: DNS, for answers that are too long for UDP, and package indexes."""


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
    """The runner of a build's commands: user, time limit and environment."""

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
    partial_line = ""
    while data := await stream.read(1 << 16):
        *lines, partial_line = (partial_line + data.decode("utf-8", "replace").replace("\r", "\n")).split("\n")
        partial_line = partial_line[:LINE_CHARACTERS]
        for line in lines:
            if line.strip():
                yield line.rstrip()[:LINE_CHARACTERS]
    if partial_line.strip():
        yield partial_line.rstrip()


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the sandbox to end all its processes; it does so at once."""
    with suppress(ProcessLookupError):
        if process.returncode is None:
            process.terminate()
    try:
        await asyncio.wait_for(process.wait(), END_S)
    except TimeoutError:
        process.kill()
        await process.wait()
