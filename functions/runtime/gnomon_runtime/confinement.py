"""Confines a sandboxed process by a seccomp filter of system calls and a Landlock domain.

Both hold for the process and everything that it starts, and cannot be taken off. docs/decisions/0044 says why each line is there.

    user namespaces    a process could become root in one, and reach what the kernel offers to root only
    io_uring           makes sockets and other things without the system calls that are filtered here
    key rings          the session's keys are those of the user who started the gateway
    socket families    but Unix, IPv4, IPv6 and netlink: a virtual machine's host (vsock), the kernel's ciphers, old protocols
    MPTCP              is TCP that Landlock does not see
    signals, abstract Unix sockets    of processes outside of the sandbox (Linux 6.12)
    TCP ports          but the allowed ones, where they are limited (Linux 6.7)
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from gnomon_runtime import linux

_ALLOW: Final = 0x7FFF0000
_FAIL: Final = 0x00050000
"""SECCOMP_RET_ERRNO: the call fails with the number in the low 16 bits."""
_SECCOMP_SET_MODE_FILTER = 1
_SPECULATION_ALLOWED = 1 << 2
"""SECCOMP_FILTER_FLAG_SPEC_ALLOW: before Linux 5.16 a filter slows memory accesses down without it."""

_LOAD_WORD, _JUMP_EQUAL, _JUMP_ANY_BIT, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000
_FAMILIES = (1, 2, 10, 16)
_MPTCP = 262


@dataclass(frozen=True, slots=True)
class _Architecture:
    audit: int
    """AUDIT_ARCH of the kernel's headers."""
    seccomp: int
    clone: int
    unshare: int
    setns: int
    socket: int
    keys: tuple[int, int, int]


_ARCHITECTURES = {
    "x86_64": _Architecture(0xC000003E, 317, clone=56, unshare=272, setns=308, socket=41, keys=(248, 249, 250)),
    "aarch64": _Architecture(0xC00000B7, 277, clone=220, unshare=97, setns=268, socket=198, keys=(217, 218, 219)),
}
_CLONE3 = 435
_IO_URING = (425, 426, 427)

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_NET_PORT = 2
_CONNECT_TCP = 1 << 1
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1
_ABI_OF_PORTS, _ABI_OF_SCOPES = 4, 6

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def filter_system_calls() -> None:
    """Install the filter. Does nothing where the kernel or the architecture has none. Needs `forbid_new_privileges` before.

    Raises:
        OSError: the kernel has filters and does not take this one.

    """
    architecture = _ARCHITECTURES.get(platform.machine())
    if architecture is None:
        return
    description = _Program(len(_HERE) // 8, _HERE)
    try:
        _call(architecture.seccomp, _SECCOMP_SET_MODE_FILTER, _SPECULATION_ALLOWED, ctypes.addressof(description))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EINVAL):
            raise


def program(audit: int) -> bytes:
    """The filter's instructions, 8 bytes each, for the architecture of this AUDIT_ARCH number.

    Programs for another architecture, also 32-bit ones, have other numbers for the same calls: every call of theirs fails.
    """
    of = next(architecture for architecture in _ARCHITECTURES.values() if architecture.audit == audit)
    code = [
        _instruction(_LOAD_WORD, _ARCHITECTURE),
        _instruction(_JUMP_EQUAL, of.audit, then=1),
        _instruction(_RETURN, _FAIL | errno.ENOSYS),
        _instruction(_LOAD_WORD, _NUMBER),
        *_fail_if(_JUMP_AT_LEAST, _X32, errno.ENOSYS),
    ]
    # glibc falls back to clone, whose flags can be seen here; those of clone3 are behind a pointer.
    for number in (_CLONE3, *_IO_URING):
        code += _fail_if(_JUMP_EQUAL, number, errno.ENOSYS)
    for number in (of.setns, *of.keys):
        code += _fail_if(_JUMP_EQUAL, number, errno.EPERM)
    for number in (of.clone, of.unshare):
        body = [*_fail_if_flag(linux.CLONE_NEWUSER), _instruction(_RETURN, _ALLOW)]
        code += [_instruction(_JUMP_EQUAL, number, otherwise=len(body)), *body]
    families = [_instruction(_LOAD_WORD, _ARGUMENTS)]
    for at, family in enumerate(_FAMILIES):
        families.append(_instruction(_JUMP_EQUAL, family, then=len(_FAMILIES) - at))
    families += [
        _instruction(_RETURN, _FAIL | errno.EAFNOSUPPORT),
        _instruction(_LOAD_WORD, _ARGUMENTS + 2 * 8),
        *_fail_if(_JUMP_EQUAL, _MPTCP, errno.EPROTONOSUPPORT),
        _instruction(_RETURN, _ALLOW),
    ]
    code += [_instruction(_JUMP_EQUAL, of.socket, otherwise=len(families)), *families, _instruction(_RETURN, _ALLOW)]
    return b"".join(code)


def _instruction(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """`struct sock_filter`: a jump skips as many instructions as `then` or `otherwise` says."""
    return struct.pack("=HBBI", code, then, otherwise, value)


def _fail_if(jump: int, value: int, number: int) -> list[bytes]:
    return [_instruction(jump, value, otherwise=1), _instruction(_RETURN, _FAIL | number)]


def _fail_if_flag(flag: int) -> list[bytes]:
    return [_instruction(_LOAD_WORD, _ARGUMENTS), *_fail_if(_JUMP_ANY_BIT, flag, errno.EPERM)]


def limit_reach(tcp_ports: Collection[int] | None = None) -> None:
    """Keep signals and abstract Unix sockets inside of the sandbox, and TCP connections to these ports, where they are limited.

    Does what this kernel can; an older one can less, or nothing. Needs `forbid_new_privileges` before, and mounts nothing after.
    """
    try:
        version = _call(_LANDLOCK_CREATE, 0, 0, 1)
    except OSError:
        return
    scopes = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if version >= _ABI_OF_SCOPES else 0
    handled = _CONNECT_TCP if tcp_ports is not None and version >= _ABI_OF_PORTS else 0
    if not scopes and not handled:
        return
    # struct landlock_ruleset_attr: file system, network, scopes. An older kernel takes more only if it is zero.
    rules = _call(_LANDLOCK_CREATE, *_struct(struct.pack("=QQQ", 0, handled, scopes)), 0)
    try:
        if tcp_ports is not None and handled:
            for port in set(tcp_ports):
                address, _ = _struct(struct.pack("=QQ", _CONNECT_TCP, port))
                _call(_LANDLOCK_ADD, rules, _LANDLOCK_NET_PORT, address, 0)
        _call(_LANDLOCK_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _struct(data: bytes) -> tuple[ctypes.c_char_p, int]:
    return ctypes.c_char_p(data), len(data)


def _call(number: int, *arguments: int | ctypes.c_char_p) -> int:
    values = [argument if isinstance(argument, ctypes.c_char_p) else ctypes.c_long(argument) for argument in arguments]
    result = int(_libc.syscall(ctypes.c_long(number), *values))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"system call {number}: {os.strerror(code)}")
    return result


_HERE: Final = program(_ARCHITECTURES[platform.machine()].audit) if platform.machine() in _ARCHITECTURES else b""
"""The filter's program, made once, by the zygote: requests wait for its forks."""
