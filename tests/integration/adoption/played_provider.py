"""A foreign provider of OpenFaaS, played: the provider's routes, replicas that take so many requests at once, and its moods.

    /function/NAME   a replica by chance ▶ 429 and X-OpenFaaS-Internal where it has its `max_inflight`, else its process runs, or
                     the request goes to `upstream`; 503 and that header without a replica
    scale            replicas are wanted at once and available after `start_s`

`down` and `up` take its port away and back; what was under way breaks off.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from aiohttp import web

INTERNAL = "X-OpenFaaS-Internal"
REALM = 'Basic realm="Restricted"'


@dataclass
class Replica:
    """A replica of a function, with the number of its present requests."""

    under_way: int = 0


@dataclass
class Function:
    """A function as it was deployed, and its replicas. `delay_s` is what each request takes beside its process."""

    document: dict[str, Any]
    wanted: int = 1
    replicas: list[Replica] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    delay_s: float = 0.0
    upstream: str = ""
    most: int = 0
    """The most requests that were under way at once."""
    instead: list[tuple[int, bool]] = field(default_factory=list)
    """Answer the next requests without the function: the status, and whether the provider marks it as its own."""

    @property
    def max_inflight(self) -> int:
        return int((self.document.get("envVars") or {}).get("max_inflight", 0))


class PlayedProvider:
    """`start_s` is how long a replica takes from being asked for to being available."""

    def __init__(self, *, user: str = "", password: str = "", start_s: float = 0.0) -> None:
        self.url = ""
        self.functions: dict[str, Function] = {}
        self.secrets: dict[str, bytes] = {}
        self.calls: list[tuple[str, str, Any]] = []
        """Control calls that change something: method, path, document."""
        self.listed = 0
        """How often somebody has asked for the functions."""
        self.has_namespaces = True
        """Whether it knows namespaces, and functions by NAME.NAMESPACE."""
        self.answers: Counter[int] = Counter()
        """Of functions, by status."""
        self.user, self.password, self.start_s = user, password, start_s
        self.seen: list[web.BaseRequest] = []
        self._rng = random.Random(7)
        self._port = 0
        self._runner: web.AppRunner | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.down()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def up(self) -> None:
        """Listen, on the port that it had."""
        application = web.Application(client_max_size=64 << 20, middlewares=[self._guard])
        application.router.add_route("*", "/function/{name}{rest:(/.*)?}", self._invoke)
        application.router.add_route("*", "/system/functions", self._functions)
        application.router.add_get("/system/function/{name}", self._describe)
        application.router.add_post("/system/scale-function/{name}", self._scale)
        application.router.add_route("*", "/system/secrets", self._secrets)
        application.router.add_get("/system/logs", self._logs)
        application.router.add_get("/system/namespaces", self._namespaces)
        self._runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def down(self) -> None:
        """Be away: nobody can connect, and what was under way breaks off."""
        if self._runner is not None:
            runner, self._runner = self._runner, None
            await runner.cleanup()

    def add(self, name: str, process: str = "cat", *, replicas: int = 1, **fields: Any) -> Function:
        """Deploy a function, as if somebody had."""
        document = {
            "service": name,
            "image": "functions/alpine:latest",
            "envProcess": process,
            "namespace": "openfaas-fn",
            **fields,
        }
        function = self.functions[name] = Function(document, replicas, [Replica() for _ in range(replicas)])
        return function

    def changes(self, method: str) -> list[Any]:
        """The documents of such calls."""
        return [document for known, _, document in self.calls if known == method]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/system/") and self.user:
            expected = "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            if request.headers.get("Authorization") != expected:
                return web.Response(status=401, text="invalid credentials", headers={"WWW-Authenticate": REALM})
        if request.method != "GET" and request.path.startswith("/system/"):
            self.calls.append((request.method, request.path, json.loads(await request.read())))
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _functions(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            self.listed += 1
            return web.json_response([self._document(name) for name in sorted(self.functions)])
        document = json.loads(await request.read())
        if request.method == "DELETE":
            return web.Response(status=202 if self.functions.pop(document["functionName"], None) else 404)
        known = self.functions.get(document["service"])
        if request.method == "PUT" and known is None:
            return web.Response(status=404, text="unknown function")
        if ":" not in document["image"]:
            return web.Response(status=400, text="the image has no tag")
        if known is not None:
            known.document = document
        else:
            function = self.functions[document["service"]] = Function(document)
            self._begin(function, int((document.get("labels") or {}).get("com.openfaas.scale.min", 1)))
        return web.Response(status=202)

    async def _describe(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        return web.json_response(self._document(name)) if name in self.functions else web.Response(status=404)

    def _document(self, name: str) -> dict[str, Any]:
        """A FunctionStatus: what is nothing is left out."""
        function = self.functions[name]
        known = {key: value for key, value in function.document.items() if key != "service" and value is not None}
        known["labels"] = {**(known.get("labels") or {}), "faas_function": name}
        numbers = {"replicas": function.wanted, "availableReplicas": len(function.replicas)}
        return {
            "name": name,
            **known,
            **{key: number for key, number in numbers.items() if number},
            "createdAt": "2026-01-02T03:04:05Z",
        }

    async def _scale(self, request: web.Request) -> web.StreamResponse:
        function = self.functions.get(request.match_info["name"])
        if function is None:
            return web.Response(status=404)
        self._begin(function, json.loads(await request.read())["replicas"])
        return web.Response(status=202)

    def _begin(self, function: Function, replicas: int) -> None:
        function.wanted = replicas
        del function.replicas[replicas:]

        async def begin() -> None:
            await asyncio.sleep(self.start_s)
            function.replicas += [Replica() for _ in range(function.wanted - len(function.replicas))]

        task = asyncio.get_running_loop().create_task(begin())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _secrets(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response([{"name": name, "namespace": "openfaas-fn"} for name in sorted(self.secrets)])
        document = json.loads(await request.read())
        name, there = document["name"], document["name"] in self.secrets
        if request.method == "POST" and there:
            return web.Response(status=409)
        if request.method != "POST" and not there:
            return web.Response(status=404)
        if request.method == "DELETE":
            del self.secrets[name]
        else:
            self.secrets[name] = base64.b64decode(document.get("rawValue", "")) or document["value"].encode()
        return web.Response(status=202)

    async def _namespaces(self, _: web.Request) -> web.StreamResponse:
        if not self.has_namespaces:
            return web.Response(status=404, text="404 page not found")
        return web.json_response(["openfaas-fn"])

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        name = request.query["name"]
        answer = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await answer.prepare(request)
        sent = 0
        while True:
            lines = self.functions[name].lines
            for text in lines[sent:]:
                line = {"name": name, "instance": "replica-1", "timestamp": "2026-01-02T03:04:05.123456789Z", "text": text}
                await answer.write(json.dumps(line).encode() + b"\n")
            sent = len(lines)
            if request.query.get("follow") != "true":
                return answer
            await asyncio.sleep(0.02)

    async def _invoke(self, request: web.Request) -> web.StreamResponse:
        answer = await self._answered(request)
        self.answers[answer.status] += 1
        return answer

    async def _answered(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        name = name.removesuffix(".openfaas-fn") if self.has_namespaces else name
        function = self.functions.get(name)
        if function is None:
            return web.Response(status=404, text=f"no such function: {name}")
        if not function.replicas:
            return web.Response(status=503, text=f"No endpoints available for: {name}.", headers={INTERNAL: "proxy"})
        if function.instead:
            status, marked = function.instead.pop(0)
            text = f"Can't reach service for: {name}."
            return web.Response(status=status, text=text, headers={INTERNAL: "proxy"} if marked else {})
        replica = self._rng.choice(function.replicas)
        if 0 < function.max_inflight <= replica.under_way:
            return web.Response(status=429, headers={INTERNAL: "faas-middleware"})
        replica.under_way += 1
        function.most = max(function.most, sum(replica.under_way for replica in function.replicas))
        try:
            return await self._run(function, request)
        finally:
            replica.under_way -= 1

    async def _run(self, function: Function, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        body = await request.read()
        await asyncio.sleep(function.delay_s)
        if function.upstream:
            return await self._proxied(function.upstream, request, body)
        if request.headers.get("Accept") == "text/event-stream":
            return await _streamed(request)
        function.lines += ["Forking fprocess.", f"Wrote {len(body)} Bytes - Duration: 0.001s"]
        if function.document.get("envProcess") == "cat":
            return web.Response(body=body, headers={"X-Function": "echo"})
        process = await asyncio.create_subprocess_exec(
            *function.document["envProcess"].split(" "), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await process.communicate(body)
        return web.Response(status=200 if process.returncode == 0 else 500, body=output)

    async def _proxied(self, upstream: str, request: web.Request, body: bytes) -> web.StreamResponse:
        path = request.raw_path.removeprefix("/function/").partition("/")[2]
        headers = {name: value for name, value in request.headers.items() if name.lower() not in ("host", "content-length")}
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, f"{upstream}/{path}", data=body, headers=headers) as answer,
        ):
            kept = {"Content-Type": answer.headers.get("Content-Type", "")}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)


async def _streamed(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for number in range(3):
        await answer.write(b"data: %d\n\n" % number)
        await asyncio.sleep(0.02)
    return answer
