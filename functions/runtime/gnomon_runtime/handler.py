"""A user's handler.py as an application.

    def handle(event, context): ...            one request; the same as in OpenFaaS's python3-http template
    def handle(req): ...                       the same as in its python3-flask template: the body's text
    async def handle(event, context): ...      one request, beside others on one event loop
    def handle_batch(events, context): ...     many at once: a list with one result per event, in order
    RETRY_SAFE = True                          handle_batch may be called again with the same events

A handler may have both: a batch of one goes to `handle`, a larger one to `handle_batch`. With `handle` alone, the members of a
batch are answered one after the other.

An instance calls `handle` for several requests at once, each in a thread of its own, as the server in OpenFaaS's Python templates
does: 4, or 32 where it is `async`, or as `gnomon/concurrency` says (`GNOMON_CONCURRENCY` in an image). With 1, or with
`handle_batch`, there is never more than one call at a time.

One member never fails another. In the list that `handle_batch` returns, an Exception stands for the failure of that member alone.
If `handle_batch` raises instead, the faulty member is unknown. A handler that declares `RETRY_SAFE` is then called again with
each half of the batch, and so on down to the faulty member: at most 2·log2(B) calls for one of them. Without it, a second
call could repeat a side effect, so every member gets a 500; unless `gnomon/retry` says that it does no harm, and then the gateway
sends each of them once more, by itself.

A generator streams: Server-sent events or NDJSON, piece by piece, if the client accepts them and the request came alone; anybody
else gets the pieces joined. A dict that it yields is one event (`data: {…}`) or one line of NDJSON.

A handler.py that defines `gnomon_application(launch)` answers whole batches itself, tensors too: what it returns is the
application. `functions/body` does.

The folder is imported as the package `function`, as in OpenFaaS's templates, so `from .model import load` works.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from gnomon_core.launch import ASYNC_CONCURRENCY, HANDLER_CONCURRENCY, Launch
from gnomon_core.wire import Frame, Kind, Member
from gnomon_runtime.application import Application
from gnomon_runtime.events import (
    Context,
    Event,
    WrongAnswerError,
    assemble,
    encode_chunk,
    failed,
    header_lines,
    is_stream,
    member_of,
    parts_of,
)

PACKAGE = "function"
SERVER_SENT_EVENTS = "text/event-stream"
STREAM_TYPES = (SERVER_SENT_EVENTS, "application/x-ndjson")


def load_application(launch: Launch) -> Application:
    """The application of the handler folder `launch.options["folder"]`, which holds handler.py.

    Raises:
        ImportError: it cannot be imported, or defines nothing that could serve.

    """
    module = load_handler(Path(launch.options["folder"]))
    own: Callable[[Launch], Application] | None = getattr(module, "gnomon_application", None)
    return HandlerApplication(launch, module) if own is None else own(launch)


class HandlerApplication:
    """Serves the functions `handle` and `handle_batch` of a module."""

    def __init__(self, launch: Launch, module: ModuleType) -> None:
        handle, handle_batch = getattr(module, "handle", None), getattr(module, "handle_batch", None)
        if handle is None and handle_batch is None:
            raise ImportError("handler.py defines neither handle(event, context) nor handle_batch(events, context)")
        asynchronous = any(_is_async(function) for function in (handle, handle_batch))
        loop = _EventLoop() if asynchronous else None
        self._handle = _of_two_arguments(_synchronous(handle, loop), launch, handle) if handle is not None else None
        self._handle_batch: Callable[[list[Event], Context], Any] | None = None
        if handle_batch is not None:
            self._handle_batch = _synchronous(handle_batch, loop)
        self._concurrency = launch.concurrency
        if self._concurrency is None:
            self._concurrency = 1 if handle_batch is not None else ASYNC_CONCURRENCY if asynchronous else HANDLER_CONCURRENCY
        self._retry_safe = getattr(module, "RETRY_SAFE", False) is True
        self._max_batch = launch.max_batch
        hostname = os.environ.get("HOSTNAME") or socket.gethostname()
        self._context = partial(Context, hostname, launch.function, launch.instance_id)
        self._cores = launch.cores
        self._thread = threading.local()
        self._thread.cores = launch.cores

    def hello(self) -> Mapping[str, Any]:
        """The properties of the handler."""
        batches = self._handle_batch is not None
        return {"kind": "handler", "batches": batches, "max_batch": self._max_batch, "concurrency": self._concurrency}

    def resize(self, cores: int) -> None:
        """Set the number of cores in the handler's context, and torch's threads if the handler uses torch."""
        self._cores = cores
        self._size_thread()

    def _size_thread(self) -> None:
        """Set torch's threads to the instance's cores: torch keeps the number for each calling thread."""
        self._thread.cores = self._cores
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self._cores)

    def run(self, batch: Frame) -> Frame | Iterator[Frame]:
        """Answer every member. Called by several threads at once, up to `concurrency`."""
        if getattr(self._thread, "cores", None) != self._cores:
            self._size_thread()
        context = self._context(self._cores)
        context.budget_s = batch.budget_s or None
        members = batch.members
        events = [Event(member.meta, member.body) for member in members]
        if len(events) == 1 and self._handle is not None:
            return self._run_alone(batch, events[0], context)
        if self._handle_batch is None:
            return Frame(Kind.RESULT, batch.batch_id, members=[self._one(event, context) for event in events])
        return Frame(Kind.RESULT, batch.batch_id, members=self._together(events, context))

    def _one(self, event: Event, context: Context) -> Member:
        assert self._handle is not None
        try:
            return member_of(self._handle(event, context))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises is that request's answer
            return failed(error)

    def _run_alone(self, batch: Frame, event: Event, context: Context) -> Frame | Iterator[Frame]:
        assert self._handle is not None
        try:
            result = self._handle(event, context)
            if type(result) in _PLAIN:
                member = member_of(result)
            else:
                status, body, headers = parts_of(result)
                accepted = _accepted_stream(event) if is_stream(body) else None
                if accepted is not None:
                    meta, encode = header_lines(headers, f"Content-Type: {accepted}".encode()), _encoder(accepted)
                    return _stream(batch.batch_id, Member(status, 1, meta, b""), body, encode)
                member = assemble(status, body, headers)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises is that request's answer
            member = failed(error)
        return Frame(Kind.RESULT, batch.batch_id, members=(member,))

    def _together(self, events: list[Event], context: Context) -> Sequence[Member]:
        assert self._handle_batch is not None
        try:
            results = _one_per_event(self._handle_batch(events, context), len(events))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises is the requests' answer
            if not self._retry_safe or len(events) == 1 or isinstance(error, WrongAnswerError):
                return [failed(error)] * len(events)
            middle = len(events) // 2
            return [*self._together(events[:middle], context), *self._together(events[middle:], context)]
        return [_member(result) for result in results]


_PLAIN = frozenset({str, bytes})


def _member(result: Any) -> Member:
    if isinstance(result, Exception):
        return failed(result)
    try:
        return member_of(result)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises is that request's answer
        return failed(error)


def _one_per_event(results: Any, expected: int) -> Sequence[Any]:
    if not isinstance(results, list | tuple):
        raise WrongAnswerError(f"{type(results).__name__}; handle_batch returns a list with one result per event")
    if len(results) != expected:
        raise WrongAnswerError(f"{len(results)} results for a batch of {expected}; handle_batch returns one per event")
    return results


def _accepted_stream(event: Event) -> str | None:
    """The streaming type that the client accepts."""
    accept = event.headers.get("Accept", "").lower()
    for content_type in STREAM_TYPES:
        if content_type in accept:
            return content_type
    return None


def _encoder(content_type: str) -> Callable[[Any], bytes]:
    return partial(encode_chunk, server_sent_events=content_type == SERVER_SENT_EVENTS)


def _stream(batch_id: int, start: Member, body: Iterator[Any], encode: Callable[[Any], bytes]) -> Frame | Iterator[Frame]:
    """Frames of a streamed answer. The first piece is produced before the status is sent, so that an error is a plain 500."""
    try:
        first = encode(next(body))
    except StopIteration:
        return Frame(Kind.RESULT, batch_id, members=(start,))
    return _frames(batch_id, start, first, body, encode)


def _frames(batch_id: int, start: Member, first: bytes, body: Iterator[Any], encode: Callable[[Any], bytes]) -> Iterator[Frame]:
    """STREAM_START, the pieces, STREAM_END. An END with a member means that the handler failed in the middle."""
    end: tuple[Member, ...] = ()
    try:
        yield Frame(Kind.STREAM_START, batch_id, members=(start,))
        yield Frame(Kind.STREAM_DATA, batch_id, members=(Member(0, 0, b"", first),))
        for chunk in body:
            yield Frame(Kind.STREAM_DATA, batch_id, members=(Member(0, 0, b"", encode(chunk)),))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises ends the stream
        end = (failed(error),)
    finally:
        close = getattr(body, "close", None)
        if close is not None:
            close()
    yield Frame(Kind.STREAM_END, batch_id, members=end)


def load_handler(folder: Path) -> ModuleType:
    """Import `function.handler` from a folder of any name.

    Raises:
        ImportError: there is no handler.py, or something that it needs is missing.

    """
    if not (folder / "handler.py").is_file():
        raise ImportError(f"{folder} holds no handler.py")
    initial = folder / "__init__.py"
    if initial.is_file():
        spec = importlib.util.spec_from_file_location(PACKAGE, initial, submodule_search_locations=[str(folder)])
        assert spec is not None
        assert spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[PACKAGE] = package
        spec.loader.exec_module(package)
    else:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(folder)]
        sys.modules[PACKAGE] = package
    try:
        return importlib.import_module(f"{PACKAGE}.handler")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"handler.py needs {error.name}: name the package that has it in requirements.txt beside handler.py.\n")
        raise


class _EventLoop:
    """The event loop of a handler's coroutines, in a thread of its own. Threads that wait for a coroutine call it."""

    def __init__(self) -> None:
        import asyncio  # noqa: PLC0415 - most handlers are not asynchronous, and need not wait for it

        self._asyncio, self._loop = asyncio, asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="event-loop", daemon=True).start()

    def run(self, coroutine: Awaitable[Any]) -> Any:
        """Run the coroutine; an asynchronous generator becomes a generator that any thread may iterate."""
        return self._asyncio.run_coroutine_threadsafe(_guarded(coroutine), self._loop).result()

    def result_of(self, result: Any) -> Any:
        """The result of a handler, where the parts of its body come asynchronously in the order in which they are requested."""
        if hasattr(type(result), "__anext__"):
            return self._parts(result)
        if isinstance(result, dict) and hasattr(type(result.get("body")), "__anext__"):
            return {**result, "body": self._parts(result["body"])}
        if isinstance(result, tuple) and result and hasattr(type(result[0]), "__anext__"):
            return (self._parts(result[0]), *result[1:])
        return result

    def _parts(self, parts: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    part = self.run(anext(parts))
                except StopAsyncIteration:
                    return
                yield part
        finally:
            close = getattr(parts, "aclose", None)
            if close is not None:
                self.run(close())


async def _guarded(coroutine: Awaitable[Any]) -> Any:
    try:
        return await coroutine
    except SystemExit as error:  # raised in a task, it would stop the event loop and every other request
        raise RuntimeError(f"the handler called exit({error.code})") from error


def _is_async(handle: Callable[..., Any] | None) -> bool:
    return inspect.iscoroutinefunction(handle) or inspect.isasyncgenfunction(handle)


def _synchronous(handle: Callable[..., Any], loop: _EventLoop | None) -> Callable[..., Any]:
    """The handler as a synchronous function; an asynchronous handler runs on the event loop."""
    if loop is None or not _is_async(handle):
        return handle
    if inspect.isasyncgenfunction(handle):
        return lambda *arguments: loop.result_of(handle(*arguments))
    return lambda *arguments: loop.result_of(loop.run(handle(*arguments)))


def _of_two_arguments(call: Callable[..., Any], launch: Launch, handle: Callable[..., Any]) -> Callable[[Event, Context], Any]:
    """`call(event, context)`, also for a handler in the style of python3-flask, which takes the body alone."""
    parameters = inspect.signature(handle).parameters.values()
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.VAR_POSITIONAL)]
    if len(positional) != 1 or positional[0].kind is positional[0].VAR_POSITIONAL:
        return call
    if launch.environment.get("RAW_BODY", "").lower() == "true":
        return lambda event, _: call(event.body)
    return lambda event, _: call(event.body.decode("utf-8", "replace"))
