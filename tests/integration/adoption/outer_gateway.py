"""OpenFaaS's gateway, played: what it does to a provider, written from the description of its protocol.

/function/NAME   GET /system/function/NAME (a new connection, no cache on this path) ▶ 0 replicas: POST scale to the minimum,
                 poll every 100 ms until one is available ▶ forwarded with Transfer-Encoding: chunked, X-Call-Id, X-Start-Time,
                 X-Forwarded-For and -Host; 502 without a body where nothing came in time
/system/…        forwarded with the gateway's own credentials; info is wrapped, numbers of replicas are clamped to 1..5
/system/alert    firing: replicas + ceil(max · factor / 100), at most max; resolved: the minimum
by itself        lists the functions again and again, for its gauge
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web

USER, PASSWORD = "admin", "s3cret"
"""The login that the parts of an installation have in common."""
POLL_S, POLLS = 0.1, 1000
EXPORTER_S = 0.2
LEAST, MOST = 1, 5
NOT_COPIED = {"connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade", "host"}


class OuterGateway:
    """The gateway in front of the provider at `provider` (without a slash at its end)."""

    def __init__(self, provider: str, user: str, password: str, *, upstream_timeout_s: float = 60.0) -> None:
        self.provider = provider
        self.url = ""
        self.listed: list[dict[str, Any]] = []
        """The functions as its exporter saw them last."""
        self.scaled: list[tuple[str, int, int]] = []
        """Each call of the provider's scale route: the function, the number, the status of the answer."""
        self._auth = {"Authorization": aiohttp.encode_basic_auth(user, password)}
        self._timeout = aiohttp.ClientTimeout(total=upstream_timeout_s)

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(auto_decompress=False)
        # Status is asked for without keep-alive.
        self._asking = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), headers=self._auth)
        application = web.Application(client_max_size=64 << 20)
        application.router.add_route("*", "/function/{name}{rest:(/.*)?}", self._invoke)
        application.router.add_post("/system/alert", self._alert)
        application.router.add_post("/system/scale-function/{name}", self._scale)
        application.router.add_get("/system/info", self._info)
        application.router.add_route("*", "/{rest:.*}", self._forward)
        self._runner = web.AppRunner(application, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._exporter = asyncio.create_task(self._export())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._exporter.cancel()
        await asyncio.gather(self._exporter, return_exceptions=True)
        await self._runner.cleanup()
        await self._client.close()
        await self._asking.close()

    async def alert(self, function: str, *, firing: bool) -> int:
        """Send an alert as AlertManager does; returns the status of the answer."""
        alert = {"status": "firing", "labels": {"alertname": "APIHighInvocationRate", "function_name": function}}
        document = {"status": "firing" if firing else "resolved", "receiver": "scale-up", "alerts": [alert]}
        async with self._client.post(self.url + "/system/alert", json=document) as answer:
            return answer.status

    async def _export(self) -> None:
        while True:
            async with self._asking.get(self.provider + "/system/functions?namespace=") as answer:
                self.listed = await answer.json()
            await asyncio.sleep(EXPORTER_S)

    async def _status(self, name: str) -> dict[str, Any] | None:
        bare, _, namespace = name.partition(".")
        url = f"{self.provider}/system/function/{bare}?namespace={namespace}&usage=false"
        async with self._asking.get(url) as answer:
            return await answer.json() if answer.status == 200 else None

    async def _set(self, name: str, replicas: int) -> int:
        bare, _, namespace = name.partition(".")
        document = {"serviceName": bare, "replicas": replicas, "namespace": namespace}
        async with self._asking.post(f"{self.provider}/system/scale-function/{bare}", json=document) as answer:
            self.scaled.append((bare, replicas, answer.status))
            return answer.status

    async def _wake(self, name: str) -> bool:
        """True if there is such a function; it has a replica then."""
        status = await self._status(name)
        if status is None:
            return False
        if not status.get("replicas", 0):
            await self._set(name, int((status.get("labels") or {}).get("com.openfaas.scale.min", "1")))
            for _ in range(POLLS):
                status = await self._status(name)
                if status is not None and status.get("availableReplicas", 0):
                    break
                await asyncio.sleep(POLL_S)
        return True

    async def _invoke(self, request: web.Request) -> web.StreamResponse:
        if not await self._wake(request.match_info["name"]):
            return web.Response(status=404)
        headers = _copied(request.headers) | {
            "X-Call-Id": request.headers.get("X-Call-Id") or str(uuid.uuid4()),
            "X-Start-Time": str(time.time_ns()),
            "X-Forwarded-For": request.remote or "",
            "X-Forwarded-Host": request.host,
        }
        return await self._proxied(request, headers)

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        headers = _copied(request.headers) | {
            **self._auth,
            "X-Forwarded-For": request.remote or "",
            "X-Forwarded-Host": request.host,
        }
        return await self._proxied(request, headers)

    async def _proxied(self, request: web.Request, headers: Mapping[str, str]) -> web.StreamResponse:
        async def body() -> Any:
            # Its upstream request has a body without a length: the provider sees it chunked.
            async for part in request.content.iter_any():
                yield part

        try:
            async with self._client.request(
                request.method,
                self.provider + request.raw_path,
                data=body(),
                headers=headers,
                allow_redirects=False,
                timeout=self._timeout,
                skip_auto_headers=("Accept", "User-Agent", "Content-Type", "Accept-Encoding"),
            ) as upstream:
                kept = _copied(upstream.headers) | {"X-Served-By": "outer"}
                if request.headers.get("Accept") != "text/event-stream":
                    return web.Response(status=upstream.status, headers=kept, body=await upstream.read())
                answer = web.StreamResponse(status=upstream.status, headers=kept)
                await answer.prepare(request)
                async for part in upstream.content.iter_any():
                    await answer.write(part)
                return answer
        except (OSError, TimeoutError, aiohttp.ClientError):
            return web.Response(status=502)

    async def _info(self, _: web.Request) -> web.StreamResponse:
        async with self._asking.get(self.provider + "/system/info") as answer:
            provider = await answer.json()
        return web.json_response({"provider": provider, "version": {"release": "0.27.14", "sha": "outer"}, "arch": ""})

    async def _scale(self, request: web.Request) -> web.StreamResponse:
        document = json.loads(await request.read())
        replicas = min(MOST, max(LEAST, document["replicas"]))
        return web.Response(status=await self._set(request.match_info["name"], replicas))

    async def _alert(self, request: web.Request) -> web.StreamResponse:
        document = json.loads(await request.read())
        failed = False
        for alert in document["alerts"]:
            name = alert["labels"]["function_name"]
            status = await self._status(name)
            if status is None:
                failed = True
                continue
            labels = status.get("labels") or {}
            least, most = int(labels.get("com.openfaas.scale.min", "1")), int(labels.get("com.openfaas.scale.max", "5"))
            wanted = least
            if document["status"] == "firing":
                factor = int(labels.get("com.openfaas.scale.factor", "10"))
                wanted = min(most, status.get("replicas", 0) + math.ceil(most * factor / 100))
            failed |= await self._set(name, wanted) not in (200, 202)
        return web.Response(status=500 if failed else 200)


def _copied(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in NOT_COPIED}


def login_files(folder: Path) -> str:
    """The folder of the login's two files, as each part of an installation reads it. They may end in a line break."""
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "basic-auth-user").write_text(USER + "\n")
    (secrets / "basic-auth-password").write_text(PASSWORD + "\n")
    return str(secrets)
