"""A door is a listening socket in a pod's volume: whoever comes through it is that pod, whatever it says.

Only that pod has the folder mounted, and on the node the way to it is closed to everybody but root. So nobody is asked who they
are. What comes through is the coordination socket of the pod's Body itself (`gnomon_core.coordination`): a connection of
SOCK_SEQPACKET, over which descriptors travel. A pod has one: the newest takes the place of the one before, because a container
that was restarted may be back before the end of its predecessor has been seen.

Connections as they come, on an event loop: through a pod's door, and at the port for Bodies of other nodes.

A listening socket stays readable while somebody waits at it. A process that has no descriptor left for whoever that is would be
told of him over and over, and do nothing else. It looks again after a rest, in which others may have ended. Where whoever comes
needs to come once, it may rest after each: then nobody keeps it busy by coming again and again.

Who has closed a socket that somebody else reads: told once, whatever lies in it unread.

The newest leader whom this node has obeyed: an older one is refused, also after a restart, and after a power failure.

A controller whose lease has gone may not know it yet. Its successor's first question carries a higher epoch, and from then on
whatever the old one asks for is answered with 409. Epochs are counted by one installation's Lease. Another one counts anew, and
has another token: the file is named by that, or a node would obey nobody until the new count has passed the old.

When an agent that was told to end may go: not before the pods that end at the same time.

A kubelet ends a pod with our volume by asking the driver to take the volume away. Where an installation is deleted as a whole
its functions' pods and their node's driver are told to end in the same second, and a driver that goes first leaves pods that
are `Terminating` for ever, and their namespaces with them. Nobody tells the agent why it is to end: it reads no API server. It
sees which pods have volumes, and which of them have a Body that has come:

    no volume                                          go
    a volume whose Body has gone, or never came        its pod ends, most likely: stay
    volumes whose Bodies are all there                 an update, or pods that drain: stay until nothing has changed for a while

and in any case no longer than the operator says, which is less than the pod's own grace.

Worked example, 50 s at most: three Bodies drain, one hangs up after 2 s and its volume goes after 3 s, the others after 41 s;
the agent goes with the last volume. In an update the three stay where they are, and it goes after 40 s.

What the platform is told: the whole state of the node, whenever it is another than the one that it has seen.

A state and not events: whoever has missed some, or has come anew, knows as much as everybody else after one answer. `incarnation`
says whether the numbers of versions are those of the same process.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import select
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_core.whole_files import replace_file

REST_S = 1.0


class Listening:
    """Gives each connection of a listening socket to `came`, whose it is then. Neither blocks. `port` is TCP's number of it.

    `rest_s` is how long it lets nobody in after somebody has come.
    """

    def __init__(self, listener: socket.socket, came: Callable[[socket.socket], None], rest_s: float = 0.0) -> None:
        listener.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._listener, self._came, self._rest_s = listener, came, rest_s
        self._loop = asyncio.get_running_loop()
        self._listen()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Let nobody in any more. What has come stays. May be called again."""
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
            self._listener.close()

    def _listen(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError):
            return  # whoever it was has gone again
        except OSError:
            self._rest(REST_S)
            return
        if self._rest_s:
            self._rest(self._rest_s)
        connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
        self._came(connection)

    def _rest(self, seconds: float) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(seconds, self._listen)


SOCKET = "coordination.sock"
_FOR_ALL = 0o666
"""A function's container runs as any user; the folder's way in decides who gets here."""
_WAITING = 4
LISTEN_RETRY_S = 0.1
"""A Body comes once. Whatever else runs in its pod may come ten times a second, and cost the node's other pods nothing."""


@dataclass(frozen=True, slots=True)
class Pod:
    """Who is at the other end, as the kubelet has said. `function` is what the pod's own volume says that it is a part of."""

    uid: str
    namespace: str
    name: str
    function: str = ""

    @property
    def instance(self) -> str:
        """Its name among the instances of the node."""
        return f"{self.name[:200]}.{self.uid}"


Came = Callable[[Pod, socket.socket], None]
"""Gets each connection; the socket is its to close."""


class Door:
    """One pod's. Lives on an event loop."""

    def __init__(self, pod: Pod, folder: int, came: Came) -> None:
        self.pod = pod
        self._listening = Listening(_listening(folder), lambda connection: came(pod, connection), LISTEN_RETRY_S)

    def close(self) -> None:
        """Let nobody in any more. What has come stays. May be called again."""
        self._listening.close()


def _listening(folder: int) -> socket.socket:
    """Listen in this folder. Its descriptor is in the path: a pod's own path is longer than an address may be."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(SOCKET, dir_fd=folder)
        # To change the mode afterwards would be to follow whatever is there by then.
        mask = os.umask(0o777 & ~_FOR_ALL)
        try:
            listening.bind(f"/proc/self/fd/{folder}/{SOCKET}")
        finally:
            os.umask(mask)
        listening.listen(_WAITING)
    except OSError:
        listening.close()
        raise
    return listening


class HangUps:
    """Sockets that are watched for their end only. Lives on an event loop."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[], None]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, connection: socket.socket, act: Callable[[], None]) -> None:
        """Call `act` when the other side closes its end."""
        self._watched[connection.fileno()] = act
        # Without EPOLLIN: what comes is for whoever reads.
        self._epoll.register(connection, select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, connection: socket.socket) -> None:
        """Watch it no more. Nothing happens to one that is not watched."""
        if self._watched.pop(connection.fileno(), None) is not None:
            self._epoll.unregister(connection)

    def close(self) -> None:
        """Watch nothing any more."""
        self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._watched.clear()

    def _look(self) -> None:
        for descriptor, _ in self._epoll.poll(0):
            act = self._watched.get(descriptor)
            if act is not None:
                act()


DIGITS = 16


def file_of(folder: Path, token: str | None) -> Path:
    """Where the newest epoch of the installation with this token is kept."""
    return folder / f"epoch-{hashlib.sha256((token or '').encode()).hexdigest()[:DIGITS]}"


class Epochs:
    """The number, and the file that keeps it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.newest = 0
        with contextlib.suppress(FileNotFoundError, ValueError):
            self.newest = int(file.read_text(encoding="ascii"))

    def obey(self, epoch: int) -> None:
        """Take orders from this epoch on.

        Raises:
            GnomonError: 409 `stale_epoch`: a newer one has been obeyed.

        """
        if epoch < self.newest:
            text = f"This order is of epoch {epoch}; the node has obeyed {self.newest}."
            raise GnomonError(409, "stale_epoch", text, "Another controller leads by now.")
        if epoch > self.newest:
            replace_file(self._file, str(epoch), durable=True)
            self.newest = epoch


SETTLED_S = 40.0
"""Without any change so long, pods are taken to stay. Knative lets a pod drain for half a minute before its Body hears of it."""


class Leaving:
    """Made when the agent is told to end, at `now_s`; it stays `longest_s` at most."""

    def __init__(self, now_s: float, longest_s: float, settled_s: float = SETTLED_S) -> None:
        self._until_s = now_s + longest_s
        self._settled_s = settled_s
        self._changed_s = now_s
        self._seen: tuple[frozenset[str], frozenset[str]] | None = None

    def may_go(self, now_s: float, volumes: Collection[str], bodies: Collection[str]) -> bool:
        """Whether it may go now. `volumes` are the uids of the pods that have one, `bodies` of those whose Body has come."""
        seen = frozenset(volumes), frozenset(bodies)
        if seen != self._seen:
            self._seen, self._changed_s = seen, now_s
        if not volumes or now_s >= self._until_s:
            return True
        return seen[0] <= seen[1] and now_s - self._changed_s >= self._settled_s


class News:
    """A version that grows, and those who wait for a later one. Lives on an event loop."""

    def __init__(self) -> None:
        self.incarnation = secrets.token_hex(8)
        self.version = 1
        self._happened = asyncio.Event()
        self._over = False

    def happened(self) -> None:
        """Something is different now."""
        self.version += 1
        self._happened.set()
        self._happened = asyncio.Event()

    async def later_than(self, incarnation: str, version: int, patience_s: float) -> None:
        """Return when this version is history, or after so long."""
        while incarnation == self.incarnation and version >= self.version and patience_s > 0 and not self._over:
            try:
                await asyncio.wait_for(self._happened.wait(), patience_s)
            except TimeoutError:
                return

    def end(self) -> None:
        """Nobody waits any more."""
        self._over = True
        self.happened()
