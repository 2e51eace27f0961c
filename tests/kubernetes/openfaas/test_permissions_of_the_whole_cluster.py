"""The further permissions of a gateway that serves every namespace are those that it uses."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import yaml

from gnomon_core.interfaces import StoredNamespace
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.openfaas.observed import OpenFaasOptions
from gnomon_platforms.openfaas.permissions import WIDE
from gnomon_platforms.openfaas.platform import OpenFaasPlatform
from gnomon_platforms.openfaas.store import KubernetesStore
from gnomon_platforms.testing import Recorder
from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl
from tests.kubernetes.access import EVERYWHERE, Use, asked, moment
from tests.kubernetes.openfaas.as_gateway import ACCOUNT, DEPLOY, installed_account
from tests.waiting import until

TEAM = "team-a"


def roles(kubectl: Kubectl, folder: Path) -> Path:
    """The roles of deploy/openfaas/cluster-wide, as a file."""
    here = folder.resolve() / "wide"
    here.mkdir()
    parts = {"resources": DEPLOY, "components": DEPLOY / "cluster-wide"}
    document = {field: [os.path.relpath(path, here)] for field, path in parts.items()}
    (here / "kustomization.yaml").write_text(json.dumps(document))
    made = [row for row in yaml.safe_load_all(kubectl("kustomize", str(here))) if row["kind"].startswith("ClusterRole")]
    file = here / "roles.yaml"
    file.write_text(yaml.safe_dump_all(made))
    return file


async def test_a_cluster_wide_gateway_may_do_beside_the_rest_what_it_does(
    controlled: Cluster, compiled: build.Programs, tmp_path: Path
) -> None:
    file, began = roles(Kubectl(compiled.folder / "kubectl", controlled.kubeconfig), tmp_path), moment()
    with installed_account(controlled, compiled, tmp_path, file) as kubeconfig:
        api = await asyncio.to_thread(connect, kubeconfig)
        store = await asyncio.to_thread(KubernetesStore, api)
        platform = OpenFaasPlatform(api, OpenFaasOptions(adopting_s=0.0, stored=True))
        await platform.start(Recorder())
        # Made, changed, and let go of.
        for labels in ({}, {"team": "a"}):
            await asyncio.to_thread(store.put_namespace, StoredNamespace(TEAM, labels))
        await until(lambda: TEAM in [namespace.name for namespace in store.namespaces()], "it does not see what it made")
        await asyncio.to_thread(store.delete_namespace, TEAM)
        await platform.stop()
        await asyncio.to_thread(store.close)
        api.close()
    controlled.core.delete_namespace(TEAM)
    may, cluster_wide = (
        asked(file),
        {Use(EVERYWHERE, permission.group, permission.resource, verb) for permission in WIDE for verb in permission.verbs},
    )
    found = await asyncio.to_thread(ACCOUNT.uses, controlled, may, began)
    assert found.refused == set(), "the roles lack this"
    assert found.all - may == set(), "this is used, and not in the roles"
    assert cluster_wide - found.all == set(), "this is asked for, and never used"
