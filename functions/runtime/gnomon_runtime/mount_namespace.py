"""The file system that a sandboxed process sees: a plan of mounts, carried out in a mount namespace of its own.

Everything is read-only but the process's own /tmp and what it may write to. Some directories are covered by an empty tmpfs:
hidden ones, /tmp and its like, /run, where the machine's services have their sockets and locks, and those that the new user could
not pass through on the way to something it needs. What it needs below a cover is bound back.

    /root is closed to others, Python lives in /root/.pyenv   →   cover /root, bind /root/.pyenv
    /state is hidden, the model is /state/models/m.bin        →   cover /state, bind /state/models/m.bin
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gnomon_core.launch import Sandbox
from gnomon_runtime import linux

SECRETS = "/var/openfaas/secrets"
SCRATCH = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - these are the directories that become private
SERVICES = "/run"
"""Sockets of the machine's services (D-Bus, containers, the user's session), locks, pid files, credentials."""
KEPT = ("/etc/resolv.conf", "/run/opengl-driver", "/run/current-system")
"""Paths below /run, or linked to it, that a program may need: name resolution, and NixOS's drivers and programs."""
PER_MOUNT_HIDEPID = (5, 8)
"""The first Linux whose hidepid option holds for one mount of /proc and not for all of them."""


@dataclass(frozen=True, slots=True)
class Step:
    """A mount: a covering tmpfs (`bind` false) or a bind mount."""

    path: str
    bind: bool
    writable: bool


def plan(needed: Mapping[str, bool], covered: Mapping[str, bool]) -> list[Step]:
    """The mounts that are necessary, outermost first, where everything is read-only.

    Both map resolved paths to whether they may be written. Nothing is bound that no cover takes away and that may only be read,
    and nothing covered that cannot be seen anyway.
    """
    steps = {path: Step(path, bind=False, writable=writable) for path, writable in covered.items()}
    steps.update({path: Step(path, bind=True, writable=writable) for path, writable in needed.items()})
    chosen: dict[str, Step] = {}
    for path in sorted(steps, key=lambda text: PurePosixPath(text).parts):
        step = steps[path]
        above = next((chosen[str(parent)] for parent in PurePosixPath(path).parents if str(parent) in chosen), None)
        if step.bind:
            useful = step.writable if above is None else not above.bind or above.writable != step.writable
        else:
            useful = above is None or above.bind
        if useful:
            chosen[path] = step
    return list(chosen.values())


def closed_ancestors(paths: Iterable[str], uid: int, status: Callable[[str], os.stat_result] = os.stat) -> set[str]:
    """The directories above these paths that this user, in the group of the same number, cannot pass through."""
    closed: set[str] = set()
    for parent in {str(parent) for path in paths for parent in PurePosixPath(path).parents}:
        parent_status = status(parent)
        bit = stat.S_IXUSR if parent_status.st_uid == uid else stat.S_IXGRP if parent_status.st_gid == uid else stat.S_IXOTH
        if not parent_status.st_mode & bit:
            closed.add(parent)
    return closed


def set_up(sandbox: Sandbox) -> None:
    """Make this process's own mount namespace look as the sandbox says. Needs the right to mount in it."""
    # systemd shares every mount: without this, mounts made here would show on the whole machine (mount_namespaces(7)).
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    if sandbox.secrets:
        _provide_directory(SECRETS)
    needed = _existing((*KEPT, *sandbox.readable), writable=False) | _existing(sandbox.writable, writable=True)
    covered = _existing((SERVICES, *sandbox.hidden), writable=False)
    if sandbox.uid is not None:
        covered |= dict.fromkeys(closed_ancestors(needed, sandbox.uid), False)
    scratch = _existing(SCRATCH, writable=True)
    steps = plan(needed, covered | scratch)
    # Opened before anything is covered: afterwards these paths would lead into the covers.
    sources = {step.path: os.open(step.path, os.O_PATH | os.O_CLOEXEC) for step in steps if step.bind}
    folders = {path for path in sources if Path(path).is_dir()}
    _make_read_only(required=sandbox.read_only_root)
    for step in steps:
        if step.bind:
            _bind(step, sources[step.path], directory=step.path in folders)
        elif Path(step.path).is_dir():
            _cover(step, sandbox)
    # Innermost first, and only when every mount point below exists: nothing can be made in a read-only cover.
    for step in reversed(steps):
        if not step.bind and not step.writable and Path(step.path).is_dir():
            _remount(step.path, linux.MS_RDONLY)
    if sandbox.secrets:
        _mount_secrets(sandbox)
    _hide_other_processes()


def _make_read_only(*, required: bool) -> None:
    """Make every current mount read-only. Linux before 5.12 cannot: there only the user id prevents writes."""
    try:
        linux.make_tree_read_only("/")
    except OSError as error:
        if required or error.errno != errno.ENOSYS:
            raise


def _existing(paths: Iterable[str], *, writable: bool) -> dict[str, bool]:
    return {os.path.realpath(path): writable for path in paths if Path(path).exists()}


def _cover(step: Step, sandbox: Sandbox) -> None:
    data = f"mode=1777,size={sandbox.tmp_bytes}" if step.writable else "mode=755"
    linux.mount("tmpfs", step.path, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, data)


def _bind(step: Step, source: int, *, directory: bool) -> None:
    target = Path(step.path)
    if not target.exists():
        (target if directory else target.parent).mkdir(parents=True, exist_ok=True)
        if not directory:
            target.touch()
    linux.mount(f"/proc/self/fd/{source}", step.path, flags=linux.MS_BIND | linux.MS_REC)
    os.close(source)
    _remount(step.path, 0 if step.writable else linux.MS_RDONLY)


def _remount(path: str, flags: int) -> None:
    # mount(2) ignores other flags when it binds, so MS_RDONLY takes this second call. Flags that the mount had before the user
    # namespace are locked: a remount that leaves them out fails with EPERM.
    flags_to_keep = os.statvfs(path).f_flag & linux.MOUNT_FLAGS_TO_KEEP
    linux.mount("none", path, flags=linux.MS_REMOUNT | linux.MS_BIND | flags_to_keep | flags)


def _provide_directory(path: str) -> None:
    """Make sure that a mount point exists; where the disk does not let us, on a tmpfs that shows the same entries."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError:
        above = next(parent for parent in Path(path).parents if parent.is_dir())
        entries = {entry: os.open(entry, os.O_PATH | os.O_CLOEXEC) for entry in above.iterdir() if not entry.is_symlink()}
        folders = {entry for entry in entries if entry.is_dir()}
        links = {entry: entry.readlink() for entry in above.iterdir() if entry.is_symlink()}
        linux.mount("tmpfs", str(above), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755")
        for entry, source in entries.items():
            entry.mkdir() if entry in folders else entry.touch()
            linux.mount(f"/proc/self/fd/{source}", str(entry), flags=linux.MS_BIND | linux.MS_REC)
            os.close(source)
        for entry, destination in links.items():
            entry.symlink_to(destination)
        Path(path).mkdir(parents=True)


def _mount_secrets(sandbox: Sandbox) -> None:
    owner = os.geteuid() if sandbox.uid is None else sandbox.uid
    group = os.getegid() if sandbox.uid is None else sandbox.uid
    linux.mount("tmpfs", SECRETS, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, "mode=700,size=16m")
    for name, value in sandbox.secrets.items():
        if "/" in name or name in {"", ".", ".."}:
            raise ValueError(f"{name!r} cannot be the name of a secret's file")
        file = Path(SECRETS, name)
        file.write_bytes(value)
        os.chown(file, owner, group)
        file.chmod(0o400)
    os.chown(SECRETS, owner, group)
    Path(SECRETS).chmod(0o500)
    _remount(SECRETS, linux.MS_RDONLY)


def _hide_other_processes() -> None:
    release = tuple(int(part) for part in os.uname().release.split("-")[0].split(".")[:2])
    if release < PER_MOUNT_HIDEPID:
        return
    flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    try:
        linux.mount("proc", "/proc", "proc", flags, "hidepid=invisible")
    except OSError:
        # In a user namespace the kernel refuses; other users' environments are closed to us there as well.
        return
