"""What HAProxy reads when it starts: configuration, maps, certificates. The last set that it has found good is kept."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.config import CERTIFICATE_LIST, Shape, configuration, map_file
from gnomon_platforms.knative.ingress.maps import NAMES
from gnomon_platforms.knative.ingress.programming import State, certificate_file, certificate_line

CONFIGURATION = "haproxy.cfg"
TRIED = "tried"
CHECK_TIMEOUT_S = 30.0


async def install(program: str, shape: Shape, state: State, generation: str) -> None:
    """Have HAProxy check this, then put it where HAProxy reads it.

    Raises:
        GnomonError: 502 `ingress_configuration`: it finds fault with it. What was there before is there still.

    """
    tried = replace(shape, folder=shape.folder / TRIED)
    await asyncio.to_thread(write, tried, state, generation)
    await check(program, tried.folder / CONFIGURATION)
    await asyncio.to_thread(write, shape, state, generation)
    await asyncio.to_thread(shutil.rmtree, tried.folder, ignore_errors=True)


async def refused(program: str, folder: Path, pems: Sequence[str]) -> list[str]:
    """Those of these certificates that HAProxy does not take: among all others they would keep every later change from it.

    All are tried together, which thousands of them take seconds for, and halves of those only among which there is a bad one.

    Raises:
        GnomonError: 501 `ingress_haproxy`.

    """
    if not pems or await _takes(program, folder, pems):
        return []
    middle = len(pems) // 2
    return [*await refused(program, folder, pems[:middle]), *await refused(program, folder, pems[middle:])] if middle else [*pems]


async def _takes(program: str, folder: Path, pems: Sequence[str]) -> bool:
    alone = folder / "certificates"
    tried = alone / TRIED
    tried.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number, pem in enumerate(pems):
        _put(tried / f"{number}.pem", pem)
    bind = f"  bind unix@{alone}/socket ssl crt {tried}"
    _put(alone / CONFIGURATION, f"frontend certificates\n  mode http\n  timeout client 1s\n{bind}\n")
    try:
        await check(program, alone / CONFIGURATION)
    except GnomonError as error:
        if error.code != "ingress_configuration":
            raise
        return False
    finally:
        shutil.rmtree(alone)
    return True


async def check(program: str, file: Path) -> None:
    """Whether HAProxy takes a configuration.

    Raises:
        GnomonError: 502 `ingress_configuration`, with what it says; 501 `ingress_haproxy` where there is no HAProxy.

    """
    try:
        process = await asyncio.create_subprocess_exec(
            program, "-c", "-f", str(file), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise GnomonError(501, "ingress_haproxy", f"{program}: {error.strerror}.", "apt-get install haproxy") from None
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        said = b"no answer"
    if process.returncode:
        raise GnomonError(502, "ingress_configuration", f"HAProxy finds fault with {file}: {said.decode()[-1000:]}")


def write(shape: Shape, state: State, generation: str) -> None:
    """Write all files, for this user alone."""
    shape.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _put(shape.folder / CONFIGURATION, configuration(shape, state.servers, generation))
    for name in NAMES:
        _put(map_file(shape, name), "".join(f"{key} {value}\n" for key, value in state.maps[name].items()))
    lines = []
    for name, shown in state.certificates.items():
        _put(certificate_file(shape, name), shown.pem)
        lines.append(certificate_line(shape, name, shown) + "\n")
    _put(shape.folder / CERTIFICATE_LIST, "".join(lines))
    kept = {certificate_file(shape, name) for name in state.certificates}
    for file in set(shape.folder.glob("*.pem")) - kept:
        file.unlink()


def generation_of(state: State, backends: int, count: int) -> str:
    """A name for a configuration: how many there were before, and what it knows."""
    return f"{count}-{hashlib.sha256(repr((state.names, backends)).encode()).hexdigest()[:12]}"


def _put(file: Path, text: str) -> None:
    """The file as a whole or not at all."""
    partial = file.with_suffix(".part")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    partial.replace(file)
