"""What requests meet behind the ingress: hosts, paths, headers, shares, visibility, protocols."""

from __future__ import annotations

import asyncio
import collections
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gnomon_platforms.knative.ingress.backends import Endpoint, Gateway
from gnomon_platforms.knative.ingress.certificates import Certificates
from gnomon_platforms.knative.ingress.probing import probe
from gnomon_platforms.knative.ingress.proxy import Proxy, ProxyOptions
from tests.integration.knative_ingress.conftest import Backends, Setup
from tests.knative_ingresses import made, path, rule, split


async def body(client: aiohttp.ClientSession, url: str, **headers: str) -> str:
    async with client.get(url, headers={name.replace("_", "-"): value for name, value in headers.items()}) as answer:
        text = await answer.text()
        return text if answer.status == 200 else str(answer.status)


async def test_hosts_paths_and_headers_lead_to_the_first_that_fits(setup: Setup, backends: Backends) -> None:
    for name in ("a", "b", "c", "other"):
        setup.serve_at(name, await backends.begin(name))
    await setup.apply(
        made(
            "one",
            rule(
                "one.example.com",
                path(split("a"), path="/v1/models", headers={"Knative-Serving-Tag": {"exact": "blue"}}),
                path(split("b"), path="/v1"),
                path(split("c")),
            ),
        ),
        made("other", rule("*.example.org", path(split("other"), path="/only"))),
    )
    async with setup.client(setup.binds.http) as client:
        assert await body(client, "http://one.example.com/v1/models/x", Knative_Serving_Tag="blue") == "a"
        assert await body(client, "http://one.example.com/v1/models/x", Knative_Serving_Tag="blues") == "b"
        assert await body(client, "http://one.example.com/v1/models/x") == "b"
        assert await body(client, "http://one.example.com/v2?q=/v1") == "c"
        assert await body(client, "http://ONE.example.com:80/") == "c"
        assert await body(client, "http://sub.example.org/only/this") == "other"
        assert await body(client, "http://sub.example.org/else") == "404"
        assert await body(client, "http://deep.sub.example.org/only") == "404"
        assert await body(client, "http://example.com/") == "404"
        # Twice as long in hexadecimal digits, which is more than HAProxy holds of anything.
        assert await body(client, f"http://one.example.com/v1/{8181 * 'x'}") == "b"


async def test_what_is_cluster_local_is_not_known_outside(setup: Setup, backends: Backends) -> None:
    setup.serve_at("a", await backends.begin("a"))
    await setup.apply(
        made(
            "one",
            rule("a.default.svc.cluster.local", path(split("a")), visibility="ClusterLocal"),
            rule("a.example.com", path(split("a"))),
        )
    )
    async with setup.client(setup.binds.http) as outside, setup.client(setup.binds.local) as inside:
        assert await body(outside, "http://a.default.svc.cluster.local/") == "404"
        assert await body(inside, "http://a.default.svc.cluster.local/") == "a"
        assert await body(outside, "http://a.example.com/") == "a"
        assert await body(inside, "http://a.example.com/") == "a"


async def test_shares_are_kept_and_headers_are_those_of_the_share(setup: Setup, backends: Backends) -> None:
    setup.serve_at("new", await backends.begin("new"))
    setup.serve_at("old", await backends.begin("old"))
    setup.serve_at("none", await backends.begin("none"))
    shares = (split("new", 20, Which="new"), split("old", 80, Which="old"), split("none", 0, Which="none"))
    await setup.apply(made("one", rule("a.example.com", path(*shares, appendHeaders={"Which": "path", "Also": 'a "b" %[src]'}))))
    async with setup.client(setup.binds.http) as client:
        said = collections.Counter([await body(client, "http://a.example.com/", Which="mine", Also="mine") for _ in range(400)])
    assert set(said) == {"new", "old"}
    # 80 of 400 are expected, with a deviation of 8: six of them is one in a billion.
    assert 32 <= said["new"] <= 128
    assert all(headers["which"] == name and headers["also"] == 'a "b" %[src]' for name, headers in backends.seen)


async def test_the_host_may_be_rewritten_and_an_override_of_the_hash_is_answered(setup: Setup, backends: Backends) -> None:
    setup.serve_at("a", await backends.begin("a"))
    one = made("one", rule("vanity.example.com", path(split("a"), rewriteHost="a.default.svc.cluster.local")))
    await setup.apply(one)
    async with setup.client(setup.binds.http) as client:
        assert await body(client, "http://vanity.example.com/", K_Network_Hash="override", K_Network_Probe="probe") == "a"
        assert await body(client, "http://vanity.example.com/", K_Network_Hash="another") == "a"
    first, second = (headers for _, headers in backends.seen)
    assert first["Host"] == "a.default.svc.cluster.local"
    assert first["k-network-hash"] == one.hash
    assert second["k-network-hash"] == "another"
    assert (await probe(setup.binds.probe_http, "vanity.example.com")).hash == one.hash
    assert (await probe(setup.binds.probe_http, "nobody.example.com")).hash == ""


async def test_websockets_pass(setup: Setup, backends: Backends) -> None:
    setup.serve_at("a", await backends.begin("a"))
    await setup.apply(made("one", rule("a.example.com", path(split("a")))))
    async with setup.client(setup.binds.http) as client, client.ws_connect("http://a.example.com/") as socket:
        for number in range(3):
            await socket.send_str(f"hello {number}")
            assert await socket.receive_str(timeout=10) == f"hello {number} a"


async def test_a_backend_that_batches_is_the_gateway(setup: Setup, backends: Backends) -> None:
    setup.serve_at("batching-1", await backends.begin("straight"))
    setup.gateway = there = Gateway((Endpoint("127.0.0.1", await backends.begin("gateway")),))
    setup.revisions = {("default", "batching-1"): {"gnomon/max-batch": "8"}}
    headers = {"Knative_Serving_Revision": "batching-1", "Knative_Serving_Namespace": "default"}
    one = made("one", rule("a.example.com", path(split("batching-1", **headers))))
    await setup.apply(one)
    async with setup.client(setup.binds.http) as client:
        assert await body(client, "http://a.example.com/", Knative_Serving_Revision="another") == "gateway"
        assert backends.seen[-1][1]["knative-serving-revision"] == "batching-1"
        # With nobody ready at the gateway, and for a Revision that batches no more, it is the Revision itself.
        setup.gateway = Gateway()
        await setup.apply(one)
        assert await body(client, "http://a.example.com/") == "straight"
        setup.gateway = there
        await setup.apply(one)
        assert await body(client, "http://a.example.com/") == "gateway"
        setup.revisions.clear()
        await setup.apply(one)
        assert await body(client, "http://a.example.com/") == "straight"
    assert setup.proxy.reloads == 1


async def test_an_endpoint_that_refuses_is_passed_over(setup: Setup, backends: Backends) -> None:
    port = await backends.begin("a")
    setup.serve_at("a", port, 1)
    await setup.apply(made("one", rule("a.example.com", path(split("a")))))
    async with setup.client(setup.binds.http) as client:
        assert {await body(client, "http://a.example.com/") for _ in range(40)} == {"a"}


async def test_nobody_behind_a_service_is_503_and_a_503_is_not_asked_again(setup: Setup, backends: Backends) -> None:
    setup.serve_at("a")
    await setup.apply(made("one", rule("a.example.com", path(split("a")))))
    async with setup.client(setup.binds.http) as client:
        assert await body(client, "http://a.example.com/") == "503"


def certificate(folder: Path, host: str, kind: str = "ec -pkeyopt ec_paramgen_curve:P-256") -> tuple[str, Path]:
    """A certificate with its key, as one text, and the certificate alone as a file."""
    key, public = folder / f"{host}.key", folder / f"{host}.crt"
    subject = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}", "-days", "2"]
    options = ["-newkey", *kind.split(), "-nodes"]
    command = ["openssl", "req", "-x509", *options, *subject, "-keyout", str(key), "-out", str(public)]
    subprocess.run(command, check=True, capture_output=True)
    return public.read_text() + key.read_text(), public


async def securely(setup: Setup, host: str, trusted: Path) -> str:
    """The answer to a request by TLS, whose certificate must be this one."""
    context = ssl.create_default_context(cafile=str(trusted))
    socket = setup.binds.https.removeprefix("unix@")
    reader, writer = await asyncio.open_unix_connection(socket, ssl=context, server_hostname=host)
    writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.decode()


async def test_each_host_shows_its_certificate_and_plain_requests_are_redirected(
    setup: Setup, backends: Backends, folder: Path
) -> None:
    setup.serve_at("a", await backends.begin("a"))
    publics = {}
    for name in ("a", "b"):
        setup.certificates["default", name], publics[name] = certificate(folder, f"{name}.example.com")
    ingresses = [
        made(
            name,
            rule(f"{name}.example.com", path(split("a"))),
            tls=[{"hosts": [f"{name}.example.com"], "secretName": name, "secretNamespace": "default"}],
            httpOption=option,
        )
        for name, option in (("a", "Redirected"), ("b", "Enabled"))
    ]
    await setup.apply(ingresses[0])
    # The second comes while it runs.
    await setup.apply(*ingresses)
    assert setup.proxy.reloads == 1
    for name in ("a", "b"):
        assert (await securely(setup, f"{name}.example.com", publics[name])).endswith("\r\n\r\na")
        with pytest.raises(ssl.SSLError):
            await securely(setup, "unknown.example.com", publics[name])
    assert backends.seen[-1][1]["X-Forwarded-Proto"] == "https"
    async with setup.client(setup.binds.http) as client:
        async with client.get("http://a.example.com/x", allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (301, "https://a.example.com/x")
        assert await body(client, "http://b.example.com/") == "a"


async def test_a_renewed_certificate_takes_its_predecessors_place(setup: Setup, backends: Backends, folder: Path) -> None:
    setup.serve_at("a", await backends.begin("a"))
    one = made("a", rule("a.example.com", path(split("a"))), tls=[{"hosts": ["a.example.com"], "secretName": "a"}])
    for _ in range(2):
        setup.certificates["default", "a"], public = certificate(folder, "a.example.com")
        await setup.apply(one)
        assert (await securely(setup, "a.example.com", public)).startswith("HTTP/1.1 200 ")
    assert setup.proxy.reloads == 1


async def test_a_certificate_that_goes_bad_is_shown_as_it_was_and_holds_up_no_other_change(
    setup: Setup, backends: Backends, folder: Path
) -> None:
    setup.serve_at("a", await backends.begin("a"))
    setup.serve_at("b", await backends.begin("b"))
    a = made("a", rule("a.example.com", path(split("a"))), tls=[{"hosts": ["a.example.com"], "secretName": "a"}])
    good, public = certificate(folder, "a.example.com")
    weak, _ = certificate(folder, "weak.example.com", "rsa:512")
    known, secret = Certificates(), ("default", "a")
    for number, pem in enumerate((good, "", weak)):
        await known.renew({secret: pem}, setup.proxy.takes)
        kept = known.pem(secret)
        assert kept is not None
        setup.certificates[secret] = kept
        await setup.apply(a, made("b", rule(f"b{number}.example.com", path(split("b")))))
        assert (await securely(setup, "a.example.com", public)).startswith("HTTP/1.1 200 ")
        async with setup.client(setup.binds.http) as client:
            assert await body(client, f"http://b{number}.example.com/") == "b"
    assert setup.proxy.reloads == 1


async def test_many_certificates_are_tried_together_and_a_bad_one_is_found_out_among_them(folder: Path, haproxy: str) -> None:
    wrapper, calls = folder / "counted", folder / "calls"
    wrapper.write_text(f'#!/bin/sh\necho >> {calls}\nexec {haproxy} "$@"\n')
    wrapper.chmod(0o755)
    proxy = Proxy(ProxyOptions(folder / "proxy", str(wrapper)))
    good = [certificate(folder, f"g{number}.example.com")[0] for number in range(8)]
    for _ in range(2):
        assert await proxy.takes(good) == set(good)
        assert len(calls.read_text()) == 1, "each is tried once"
    more = [certificate(folder, f"m{number}.example.com")[0] for number in range(7)]
    weak, _ = certificate(folder, "weak.example.com", "rsa:512")
    assert await proxy.takes([*more, weak, *good]) == {*more, *good}
    assert len(calls.read_text()) == 1 + 7, "the eight that are new, and two halves three times"


async def test_http2_without_tls_reaches_h2c_and_http1_backends(setup: Setup, backends: Backends) -> None:
    """curl speaks HTTP/2 with prior knowledge; what is behind is HTTP/1.1 here, and gRPC in the next test."""
    setup.serve_at("a", await backends.begin("a"))
    await setup.apply(made("one", rule("a.example.com", path(split("a")))))
    socket = setup.binds.http.removeprefix("unix@")
    command = [
        "curl",
        "-s",
        "--http2-prior-knowledge",
        "--unix-socket",
        socket,
        "-w",
        " %{http_version}",
        "http://a.example.com/",
    ]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    said, _ = await process.communicate()
    assert said.decode() == "a 2"


async def test_grpc_streams_pass_and_each_is_drawn_anew(setup: Setup) -> None:
    grpc = pytest.importorskip("grpc", reason="grpcio is not installed")
    names = ("blue", "green")
    servers = []
    for name in names:
        server, port = await grpc_server(grpc, name)
        servers.append(server)
        setup.serve_at(name, port, h2c=True)
    await setup.apply(made("one", rule("a.example.com", path(*(split(name, 50) for name in names)))))
    target = f"unix:{setup.binds.http.removeprefix('unix@')}"
    said = set()
    async with grpc.aio.insecure_channel(target, options=[("grpc.default_authority", "a.example.com")]) as channel:
        call = channel.stream_stream("/test.Ping/Stream")
        for _ in range(40):
            stream = call()
            for number in range(5):
                await stream.write(b"%d" % number)
                answer = await stream.read()
                assert answer.startswith(b"%d " % number)
            said.add(answer.split()[1].decode())
            await stream.done_writing()
            assert await stream.code() == grpc.StatusCode.OK
    assert said == set(names)
    for server in servers:
        await server.stop(None)


async def grpc_server(grpc: Any, name: str) -> tuple[Any, int]:
    """A server that echoes each message with its name."""

    async def echo(stream: Any, _context: object) -> AsyncIterator[bytes]:
        async for message in stream:
            yield message + b" " + name.encode()

    handler = grpc.stream_stream_rpc_method_handler(echo)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Ping", {"Stream": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port
