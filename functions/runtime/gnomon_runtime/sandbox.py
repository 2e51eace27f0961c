"""Enter a sandbox: another user, another view of the file system, bounded resources, and no way back.

As root the process becomes the sandbox's uid. Otherwise it stays the same user in a user namespace of its own, where the machine
allows one; where it does not, a function without secrets still runs, and one with secrets is refused rather than shown to others.

    python -m gnomon_runtime.sandbox DESCRIPTION -- COMMAND …     run a command so; 124 when its time is over

DESCRIPTION is the JSON of `gnomon_core.launch.Sandbox`, without secrets: arguments can be read by every user of the machine.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_core.launch import Limits, Sandbox
from gnomon_runtime import confinement, linux, mount_namespace

TIME_IS_OVER = 124
CANNOT_RUN = 126
POLL_S = 0.02


def enter(sandbox: Sandbox) -> None:
    """Put this single-threaded process into the sandbox.

    Raises:
        GnomonError: 501 `secrets_unavailable` where secrets cannot be kept from others.
        OSError: a limit or the user could not be set.

    """
    try:
        own_mounts()
    except OSError as error:
        if sandbox.secrets:
            raise secrets_unavailable(str(error)) from error
    else:
        mount_namespace.set_up(sandbox)
    set_limits(sandbox.limits)
    if sandbox.uid is not None and os.geteuid() == 0:
        # Groups first: without root's user id the process may not change them any more.
        os.setgroups([])
        os.setresgid(sandbox.uid, sandbox.uid, sandbox.uid)
        os.setresuid(sandbox.uid, sandbox.uid, sandbox.uid)
    if os.geteuid() != 0:
        # The first process of a user namespace has every capability in it, and could mount over what hides other functions.
        linux.drop_capabilities()
    # Landlock and seccomp both ask for this of a process without CAP_SYS_ADMIN.
    linux.forbid_new_privileges()
    linux.forbid_inspection()
    confinement.limit_reach(sandbox.tcp_ports)
    confinement.filter_system_calls()


def secrets_unavailable(reason: str) -> GnomonError:
    """The refusal of a function with secrets where they cannot be mounted for it alone."""
    return GnomonError(
        501,
        "secrets_unavailable",
        f"This machine does not let us mount secrets for one function alone ({reason}).",
        "Start Gnomon as root, or allow unprivileged user namespaces, or deploy the function without secrets.",
    )


def own_mounts() -> None:
    """Give this process a mount namespace in which it may mount. Raises OSError where there is no way to one."""
    if os.geteuid() == 0:
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWIPC)
        return
    uid, gid = os.geteuid(), os.getegid()
    linux.allow_inspection()
    linux.unshare(linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWIPC)
    # user_namespaces(7): a process without privileges may write gid_map only after it has given up setgroups.
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")


def why_no_isolation() -> str | None:
    """The reason why processes cannot have mounts of their own; None if they can.

    A child process tries, because nothing short of a trial tells: distributions forbid user namespaces in several ways (sysctls,
    AppArmor, seccomp filters of containers).
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            own_mounts()
            linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
            linux.mount("tmpfs", mount_namespace.SCRATCH[0], "tmpfs")
        except OSError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.close(write)
    reason = os.read(read, 4096).decode()
    os.close(read)
    os.waitpid(child, 0)
    return reason or None


def set_limits(limits: Limits) -> None:
    """Bound this process and its children."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _lower(resource.RLIMIT_NOFILE, limits.open_files)
    if limits.memory_bytes is not None:
        _lower(resource.RLIMIT_DATA, _data_bytes() + limits.memory_bytes)
    if limits.processes is not None:
        _lower(resource.RLIMIT_NPROC, limits.processes)


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (bound, bound))


def _data_bytes() -> int:
    # The sixth number is data and stack in pages: inherited memory does not count against the new process's limit.
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5]) * resource.getpagesize()


def run(sandbox: Sandbox, command: Sequence[str]) -> int:
    """Run a command in the sandbox and return its exit status. Whatever it started has ended when this returns."""
    linux.become_subreaper()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _become(sandbox, command, parent)
    signal.signal(signal.SIGTERM, lambda *_: _end_all(child))
    deadline_s = None if sandbox.limits.wall_s is None else time.monotonic() + sandbox.limits.wall_s
    status = _wait(child, deadline_s)
    _end_all(child)
    if status is None:
        sys.stderr.write(f"ended after {sandbox.limits.wall_s:g} s, the time it may take\n")
        return TIME_IS_OVER
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _become(sandbox: Sandbox, command: Sequence[str], parent: int) -> None:
    try:
        os.setsid()
        enter(sandbox)
        linux.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(CANNOT_RUN)
        os.execvp(command[0], list(command))  # noqa: S606 - the command is the caller's, as a list
    except (OSError, GnomonError) as error:
        sys.stderr.write(f"{command[0]}: {error}\n")
        sys.stderr.flush()
        os._exit(CANNOT_RUN)


def _wait(child: int, deadline_s: float | None) -> int | None:
    while True:
        pid, status = os.waitpid(child, os.WNOHANG if deadline_s is not None else 0)
        if pid:
            return status
        if deadline_s is not None and time.monotonic() > deadline_s:
            return None
        time.sleep(POLL_S)


def _end_all(child: int) -> None:
    """Kill the child's session and every orphan reparented to this process."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:
        os.kill(child, signal.SIGKILL)
    while True:
        for orphan in children():
            os.kill(orphan, signal.SIGKILL)
        try:
            os.wait()
        except ChildProcessError:
            return


def children() -> list[int]:
    """The child processes of this process."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()]


def main(arguments: Sequence[str]) -> int:
    """Run a command in a sandbox, as the module docstring describes. Returns the exit status."""
    if len(arguments) < 3 or arguments[1] != "--":  # noqa: PLR2004 - description, --, command
        sys.stderr.write("usage: python -m gnomon_runtime.sandbox DESCRIPTION -- COMMAND …\n")
        return 2
    sandbox = Sandbox.from_json(arguments[0])
    if sandbox.secrets:
        sys.stderr.write("a description in an argument may hold no secrets\n")
        return 2
    return run(sandbox, arguments[2:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
