"""`python -m gnomon_platforms.knative.ingress`: the ingress class `gnomon`, beside Knative's own."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import sys
from pathlib import Path

from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.backends import gateway_place
from gnomon_platforms.knative.ingress.config import Binds, Limits
from gnomon_platforms.knative.ingress.controller import ControllerOptions
from gnomon_platforms.knative.ingress.names import CERTIFICATE_LABEL
from gnomon_platforms.knative.ingress.proxy import ProxyOptions
from gnomon_platforms.knative.ingress.seeing import SeeingOptions
from gnomon_platforms.knative.ingress.serving import ServingOptions, serve
from gnomon_platforms.knative.ingress.status import Addresses
from gnomon_platforms.knative.resources import CLASS, SYSTEM_NAMESPACE
from gnomon_platforms.kubernetes.client import connect


def parser() -> argparse.ArgumentParser:
    """The options."""
    usual = Binds()
    made = argparse.ArgumentParser(prog="python -m gnomon_platforms.knative.ingress", description=__doc__)
    made.add_argument("--kubeconfig", type=Path, help="else KUBECONFIG, or the cluster that this runs in")
    made.add_argument("--ingress-class", default=CLASS, help="the class that is served")
    made.add_argument("--domain", default="cluster.local", help="the cluster's domain")
    made.add_argument("--namespace", default=SYSTEM_NAMESPACE, help="where the Services and the Lease are")
    made.add_argument("--public-service", default="gnomon-ingress", help="the Service that leads to --http and --https")
    made.add_argument("--private-service", default="gnomon-ingress-local", help="the Service that leads to --local")
    made.add_argument("--peers", default="", help="the Service that leads to the probe ports of every replica")
    made.add_argument("--gateway", default="", help="SERVICE:PORT or ADDRESS:PORT of the gateway of Revisions that batch")
    made.add_argument("--secret-labels", default=CERTIFICATE_LABEL, help="only these Secrets are looked at; empty for all")
    made.add_argument("--folder", type=Path, default=Path("/run/gnomon-ingress"), help="HAProxy's files and sockets")
    made.add_argument("--haproxy", default="haproxy", help="the program")
    for name in ("http", "https", "local", "probe-http", "probe-local"):
        usual_bind = getattr(usual, name.replace("-", "_"))
        made.add_argument(f"--{name}", default=usual_bind, help=f"where HAProxy listens for it: {usual_bind}")
    made.add_argument("--descriptors", type=int, default=Limits().descriptors, help="how many HAProxy has, two a connection")
    made.add_argument("--leave-proxy", action="store_true", help="let HAProxy go on when this ends")
    made.add_argument("--drain", type=float, default=25.0, metavar="S", help="how long HAProxy may then answer what it holds")
    made.add_argument("--page", default="", help="where it tells how it is, /healthz and /metrics: nowhere")
    made.add_argument("--alone", action="store_true", help="write status without a Lease")
    return made


def options(asked: argparse.Namespace) -> ServingOptions:
    """What was asked for."""
    services = asked.public_service, asked.private_service
    addresses = Addresses(*(f"{name}.{asked.namespace}.svc.{asked.domain}" for name in services))
    gateway = gateway_place(asked.gateway, asked.namespace) if asked.gateway else None
    controller = ControllerOptions(
        addresses,
        (asked.probe_http, asked.probe_local),
        SeeingOptions(asked.ingress_class, gateway, asked.domain, asked.secret_labels),
        (asked.namespace, asked.peers) if asked.peers else None,
    )
    binds = Binds(asked.http, asked.https, asked.local, asked.probe_http, asked.probe_local)
    proxy = ProxyOptions(asked.folder, asked.haproxy, binds, Limits(descriptors=asked.descriptors))
    lease_namespace = None if asked.alone else asked.namespace
    return ServingOptions(controller, proxy, lease_namespace, asked.leave_proxy, asked.drain, asked.page)


async def run(asked: argparse.Namespace) -> None:
    """Serve until told to end."""
    api = await asyncio.to_thread(connect, asked.kubeconfig)
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serve(api, options(asked))
    api.close()


def main() -> int:
    """Run it; 1 where it cannot begin."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(run(parser().parse_args()))
    except GnomonError as error:
        sys.stderr.write(f"gnomon: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
