"""The checks of a cluster installation, in their order, and the connection to the cluster for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gnomon_cli.doctor.cluster import API_SERVER, Cluster, ReviewSubject, cluster_checks, network_policies
from gnomon_cli.doctor.findings import Check, Finding, Level, run_checks
from gnomon_cli.doctor.knative import ON_KNATIVE, batch_checks, knative_checks
from gnomon_cli.doctor.openfaas import Installation, gateway_of, openfaas_checks
from gnomon_cli.doctor.shadows import shadow_checks, shadow_client_checks
from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.client import connect


def examine_cluster(
    kubeconfig: Path | None, context: str | None, namespaces: tuple[str, str], account: tuple[str, str] | None, *, knative: bool
) -> list[Finding]:
    """Findings about a cluster. `namespaces` are the system's and functions'; permissions those of `account` or the user."""
    try:
        api = connect(kubeconfig, context)
    except GnomonError as error:
        return [Finding(API_SERVER, Level.FAIL, error.message, error.hint)]
    try:
        installation = Installation(*namespaces, ReviewSubject(account))
        return run_checks(_checks(Cluster(api), installation, knative=knative), frozenset({API_SERVER}))
    finally:
        api.close()


def _checks(cluster: Cluster, installation: Installation, *, knative: bool) -> Iterator[tuple[str, Check]]:
    yield from cluster_checks(cluster)
    yield "network policies", lambda: network_policies(cluster)
    gateway = gateway_of(installation.system)
    if knative:
        yield from knative_checks(cluster, installation.subject)
        yield from batch_checks(cluster)
        yield from shadow_checks(cluster, ON_KNATIVE.install)
        yield from shadow_client_checks(cluster, ON_KNATIVE, gateway)
    else:
        yield from openfaas_checks(cluster, installation)
        yield from shadow_checks(cluster)
        yield from shadow_client_checks(cluster, gateway, ON_KNATIVE)
