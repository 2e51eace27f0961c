"""Linux calls that Python's standard library lacks, each as a function that raises OSError, and memory in huge pages.

Numbers are those of the kernel's user-space headers; they are the same on every 64-bit architecture.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000

MADV_COLLAPSE = 25
"""Since Linux 6.1."""

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MOUNT_FLAGS_TO_KEEP = MS_NOSUID | MS_NODEV | MS_NOEXEC | 1024 | 2048
"""Flags that a remount in a user namespace may not clear; 1024 and 2048 are noatime and nodiratime."""

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SYS_MOUNT_SETATTR = 442
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_CAPABILITY_VERSION_3 = 0x20080522

# With use_errno, ctypes keeps errno per thread: another thread's call cannot change it before `_check` reads it.
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _prctl(option: int, value: int | bytes, what: str) -> None:
    # prctl is variadic, and some options refuse unused arguments that are not 0 (prctl(2)): all five are passed, as longs.
    argument = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    _check(_libc.prctl(option, argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)), what)


def advise(begin: int, length: int, advice: int) -> None:
    """Call madvise for these pages of this process."""
    _check(_libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), ctypes.c_int(advice)), "madvise")


def become_subreaper() -> None:
    """Become the parent of every orphan among our descendants."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def die_with_parent(signal_number: int) -> None:
    """Receive this signal when the parent ends. A change of the user id clears this setting."""
    _prctl(_PR_SET_PDEATHSIG, signal_number, "PR_SET_PDEATHSIG")


def forbid_inspection() -> None:
    """Disable core dumps, and deny other processes of the same user access to this process's memory and environment."""
    _prctl(_PR_SET_DUMPABLE, 0, "PR_SET_DUMPABLE")


def allow_inspection() -> None:
    """Undo `forbid_inspection`, under which a process's /proc files belong to root and the process cannot write them."""
    _prctl(_PR_SET_DUMPABLE, 1, "PR_SET_DUMPABLE")


def forbid_new_privileges() -> None:
    """Set no_new_privs: set-uid programs that this process starts gain no privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, "PR_SET_NO_NEW_PRIVS")


def set_process_name(name: str) -> None:
    """Set the name that ps shows, cut to 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode()[:15], "PR_SET_NAME")


def unshare(flags: int) -> None:
    """Leave the namespaces that these flags name for new ones."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount `source` on `target`; a bind or remount needs no kind."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(result, f"mount {target}")


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def make_tree_read_only(path: str) -> None:
    """Make every mount at and below a path read-only, for this mount namespace. Linux 5.12 or later."""
    # By number: glibc has no wrapper before 2.36. A bind remount (MS_REMOUNT | MS_BIND) would not change the mounts below.
    attributes = _MountAttributes(set=_MOUNT_ATTR_RDONLY)
    result = _libc.syscall(
        ctypes.c_long(_SYS_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        os.fsencode(path),
        ctypes.c_uint(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(result, f"mount_setattr {path}")


def drop_capabilities() -> None:
    """Give up every capability, also those that a new user namespace grants its first process."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # Version 3 has 64 capabilities: two words each of effective, permitted and inheritable ones (capget(2)).
    nothing = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(nothing)), "capset")


HUGE_BYTES = 2 << 20


def gather_huge_pages() -> int:
    """Move this process's private memory to huge pages where it fills them. Returns the bytes that are in huge pages now.

    A kernel without huge pages, or without MADV_COLLAPSE (before Linux 6.1), changes nothing: forks are only slower.
    """
    return sum(
        HUGE_BYTES for begin in huge_page_addresses(Path("/proc/self/maps").read_text(encoding="utf-8")) if _collapse(begin)
    )


def huge_page_addresses(maps: str) -> Iterator[int]:
    """Addresses at which a huge page fits in the writable anonymous memory that /proc/PID/maps lists.

    Example: 7f0000180000-7f0000680000 has room for two, at 7f0000200000 and 7f0000400000.
    """
    for line in maps.splitlines():
        span, mode, _, _, inode, *_ = line.split(maxsplit=5)
        # Inode 0 is anonymous memory. Pages of files are the page cache's, which every process shares anyway.
        if not mode.startswith("rw") or inode != "0":
            continue
        begin, end = (int(address, 16) for address in span.split("-"))
        first = -(-begin // HUGE_BYTES) * HUGE_BYTES
        yield from range(first, end - HUGE_BYTES + 1, HUGE_BYTES)


def _collapse(begin: int) -> bool:
    try:
        advise(begin, HUGE_BYTES, MADV_COLLAPSE)
    except OSError:
        return False
    return True
