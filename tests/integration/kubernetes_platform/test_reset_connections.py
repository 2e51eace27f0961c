"""A server that is killed while somebody connects: the connection that it resets is closed, not left to the garbage collector."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from urllib3.connection import HTTPSConnection

from gnomon_platforms.kubernetes.client import Api, Unreachable, connect
from tests.waiting import eventually

AT_ONCE = struct.pack("ii", 1, 0)
"""Of a socket that lingers for no time at all: closing it resets the connection, as the end of a process does."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


@pytest.fixture
def api(tmp_path: Path, listener: socket.socket) -> Iterator[Api]:
    server = {"server": f"https://127.0.0.1:{listener.getsockname()[1]}", "insecure-skip-tls-verify": True}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": server}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(document))
    made = connect(kubeconfig)
    yield made
    made.close()


@pytest.fixture
def reset_before_the_handshake(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends when a connection has been made and nothing was sent."""
    plain = HTTPSConnection._new_conn

    def connected(connection: HTTPSConnection) -> socket.socket:
        made = plain(connection)
        accepted, _ = listener.accept()
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        accepted.close()
        eventually(lambda: not has_peer(made))
        return made

    monkeypatch.setattr(HTTPSConnection, "_new_conn", connected)


def has_peer(one: socket.socket) -> bool:
    try:
        one.getpeername()
    except OSError:
        return False
    return True


def sockets() -> set[str]:
    """Those that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.add(str(descriptor.readlink()))
    return {target for target in found if target.startswith("socket:")}


@pytest.mark.usefixtures("reset_before_the_handshake")
def test_a_connection_that_is_reset_before_its_handshake_is_closed(api: Api) -> None:
    before = sockets()
    # Held, as a watch holds what its trouble is, the error keeps whatever its frames have.
    with pytest.raises(Unreachable) as caught:
        api.call("GET", "/version")
    assert sockets() == before, caught.value
