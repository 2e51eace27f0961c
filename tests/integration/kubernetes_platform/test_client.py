"""Requests to the API server."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes import connections
from gnomon_platforms.kubernetes.client import Api, Refused, Unreachable, resource_of
from gnomon_platforms.kubernetes.connections import HOST, PORT, of_pod
from gnomon_platforms.kubernetes.resources import DEPLOYMENTS, NAMESPACES, NODES, PODS, resizes_pods
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from tests.integration.kubernetes_platform.scripted import Answer, Script, listed, refusal, serving
from tests.platform_testing import Recorder


def test_each_request_is_counted_by_how_it_ended() -> None:
    def fence() -> None:
        raise GnomonError(503, "not_leading", "Another process leads.", "Ask that one.")

    resize = PODS.path("fn", "resnet-1", "resize")
    with serving(Script([listed("1")], writes=[refusal(409, "Conflict")])) as api:
        api.call("GET", PODS.path("fn"))
        api.call("GET", PODS.path("fn"))
        with pytest.raises(Refused):
            api.call("PATCH", resize, body={})
        with pytest.raises(GnomonError, match="Another process"):
            api.call("PATCH", resize, body={}, fence=fence)
        assert api.metrics.silence_s < 60.0
    with pytest.raises(Unreachable):
        api.call("GET", NODES.path())
    assert api.metrics.counts == {
        ("GET", "pods", "200"): 2,
        ("PATCH", "pods/resize", "409"): 1,
        ("PATCH", "pods/resize", "fenced"): 1,
        ("GET", "nodes", "unanswered"): 1,
    }


@pytest.mark.parametrize(
    ("path", "resource"),
    [
        (DEPLOYMENTS.path("fn", "resnet", "scale"), "deployments/scale"),
        (DEPLOYMENTS.path("fn", "resnet"), "deployments"),
        (DEPLOYMENTS.path(), "deployments"),
        (PODS.path("fn", "x", "status"), "pods/status"),
        (NAMESPACES.path(name="fn"), "namespaces"),
        (NODES.path(name="n1"), "nodes"),
    ],
)
def test_paths_name_what_they_are_about_and_not_whose_it_is(path: str, resource: str) -> None:
    assert resource_of(path) == resource


PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


@dataclass
class Pod:
    """The files and variables that the kubelet gives a pod: `folder` has token and CA, `environment` the server's address."""

    folder: Path
    environment: dict[str, str]
    authorizations: list[str] = field(default_factory=list)
    """The header Authorization of each request."""

    @property
    def token(self) -> Path:
        return self.folder / "token"


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pod]:
    """A pod whose API server answers with an empty object."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    key, certificate = tmp_path / "key", tmp_path / "ca.crt"
    subject = ["-subj", "/CN=apiserver", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *options, *subject], check=True, capture_output=True)
    (tmp_path / "token").write_text("first\n")

    class Server(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.authorizations.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    found = Pod(tmp_path, {HOST: "127.0.0.1", PORT: str(server.server_port)})
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_renewed_token_is_used(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    server = of_pod(pod.token, pod.environment)
    assert server is not None
    api = Api(server)
    assert api.call("GET", "/version") == {}
    pod.token.write_text("second")
    api.call("GET", "/version")
    monkeypatch.setattr(connections, "REREAD_TOKEN_S", 0.0)
    api.call("GET", "/version")
    api.close()
    assert pod.authorizations == ["Bearer first", "Bearer first", "Bearer second"]


def test_a_server_of_another_authority_is_refused(pod: Pod, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "token").write_text("t")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=other"]
    subprocess.run([*command, "-keyout", str(other / "key"), "-out", str(other / "ca.crt")], check=True, capture_output=True)
    server = of_pod(other / "token", pod.environment)
    assert server is not None
    api = Api(server)
    with pytest.raises(Unreachable):
        api.call("GET", "/version")
    api.close()
    assert not pod.authorizations


def test_elsewhere_a_kubeconfig_says_where_the_server_is(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_pod(pod.folder / "missing", pod.environment) is None
    assert of_pod(pod.token, {}) is None
    # A proxy has rules of its own, which the official client knows.
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert of_pod(pod.token, pod.environment) is None


CONNECTED = """
import sys
from pathlib import Path
import gnomon_server.knative_autoscaler
from gnomon_platforms.kubernetes import client as api
api.SERVICE_ACCOUNT = Path(sys.argv[1])
api.connect().call("GET", "/version")
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_a_pod_of_the_autoscaler_class_imports_no_official_client(pod: Pod) -> None:
    """The process requests 0.05 of a core: its imports decide how long it takes to become healthy."""
    environment = {name: text for name, text in os.environ.items() if name not in {*PROXIES, "KUBECONFIG"}} | pod.environment
    done = subprocess.run(
        [sys.executable, "-c", CONNECTED, str(pod.token)], env=environment, check=True, capture_output=True, text=True
    )
    assert not {"kubernetes", "pydantic", "requests", "oauthlib", "numpy"} & set(done.stdout.split())
    assert pod.authorizations == ["Bearer first"]


NOTHING: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "items": []}


@pytest.mark.parametrize("offered", ["pods/resize", "pods/status"])
async def test_sizes_are_offered_where_pods_can_be_resized(offered: str) -> None:
    answer, sizes = Answer({**NOTHING, "resources": [{"name": "pods"}, {"name": offered}]}), offered == "pods/resize"
    with serving(Script([answer])) as api:
        platform = OpenFaasPlatform(api)
        await platform.start(Recorder())
        can = platform.capabilities
        await platform.stop()
    assert (can.size, can.resize, can.place) == (sizes, sizes, True)


def test_a_server_that_does_not_say_what_it_offers_is_believed_to() -> None:
    with serving(Script([refusal(403, "Forbidden")])) as api:
        assert resizes_pods(api)
