"""The store contract with the cluster as store, and the objects that users of Kubernetes find there."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes.client import ApiException

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import StoredNamespace
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.openfaas.store import KubernetesStore, require_namespace
from tests.cluster.client import Cluster, until
from tests.contracts.test_function_store import FunctionStoreContract, stored
from tests.kubernetes.openfaas.conftest import opened

NAMESPACES = ("openfaas-fn", "staging", "other", "dev")
KEY = FunctionKey("fn")


@pytest.fixture
def bare(control_plane: Cluster) -> Iterator[Cluster]:
    """etcd and an apiserver, and nobody who would carry anything out. What a test made there is gone after it."""
    core, apps = control_plane.core, control_plane.apps
    for name in NAMESPACES:
        if name != "dev" and name not in {namespace.metadata.name for namespace in core.list_namespace().items}:
            core.create_namespace({"metadata": {"name": name}})
    yield control_plane
    for name in NAMESPACES:
        apps.delete_collection_namespaced_deployment(name, propagation_policy="Background")
        core.delete_collection_namespaced_secret(name)
        for service in core.list_namespaced_service(name).items:
            core.delete_namespaced_service(service.metadata.name, name)
    for name in ("staging", "dev", "made"):
        if name in {namespace.metadata.name for namespace in core.list_namespace().items}:
            core.patch_namespace(name, {"metadata": {"labels": None, "annotations": None}})


class TestKubernetesStore(FunctionStoreContract):
    opener = "tests.kubernetes.openfaas.conftest:opened"

    @pytest.fixture
    def path(self, bare: Cluster) -> Path:
        return bare.kubeconfig

    def test_a_function_without_instances_is_a_deployment_with_its_service_and_a_token(
        self, store: KubernetesStore, bare: Cluster
    ) -> None:
        store.put_function(stored("fn", labels={"team": "vision"}, annotations={"topic": "é"}))
        found = bare.apps.read_namespaced_deployment("fn", "openfaas-fn")
        assert found.spec.replicas == 0
        assert found.metadata.labels["faas_function"] == "fn"
        assert found.metadata.labels["team"] == "vision"
        assert found.metadata.annotations["topic"] == "é"
        service = bare.core.read_namespaced_service("fn", "openfaas-fn")
        token = bare.core.read_namespaced_secret("fn.gnomon", "openfaas-fn")
        for made in (service, token):
            # Whoever removes the Deployment removes these with it.
            assert [owner.uid for owner in made.metadata.owner_references] == [found.metadata.uid]

    def test_an_update_keeps_what_others_have_written_and_drops_what_is_not_said_any_more(
        self, store: KubernetesStore, bare: Cluster
    ) -> None:
        store.put_function(stored("fn", labels={"team": "vision", "stage": "one"}))
        bare.apps.patch_namespaced_deployment(
            "fn", "openfaas-fn", {"metadata": {"labels": {"theirs": "1"}}, "spec": {"replicas": 3}}
        )
        store.put_function(stored("fn", version=2, labels={"stage": "two"}))
        found = bare.apps.read_namespaced_deployment("fn", "openfaas-fn")
        assert {name: found.metadata.labels.get(name) for name in ("team", "stage", "theirs")} == {
            "team": None,
            "stage": "two",
            "theirs": "1",
        }
        assert found.spec.replicas == 3, "how many there are is not the store's"

    def test_changes_by_kubectl_are_seen(self, store: KubernetesStore, bare: Cluster) -> None:
        changes: list[FunctionKey] = []
        store.put_function(stored("fn"))
        store.watch(changes.append)
        bare.apps.patch_namespaced_deployment("fn", "openfaas-fn", {"spec": {"replicas": 2}})
        bare.apps.delete_namespaced_deployment("fn", "openfaas-fn")
        until(lambda: changes, "the news")
        assert changes == [KEY], "that it has more pods is no change of the function"
        assert list(store.functions()) == []

    def test_a_removed_function_stays_as_a_deployment_until_it_has_answered(self, store: KubernetesStore, bare: Cluster) -> None:
        store.put_function(stored("fn", version=4))
        assert store.delete_function(KEY)
        assert bare.apps.read_namespaced_deployment("fn", "openfaas-fn").metadata.annotations["gnomon/removed"] == "true"
        again = opened(bare.kubeconfig)
        assert list(again.functions()) == []
        self.close(again)
        store.put_function(stored("fn", version=5))
        assert [found.version for found in store.functions()] == [5]
        assert "gnomon/removed" not in bare.apps.read_namespaced_deployment("fn", "openfaas-fn").metadata.annotations

    def test_the_pods_of_a_removed_function_are_not_taken_for_those_of_a_new_one(
        self, store: KubernetesStore, bare: Cluster
    ) -> None:
        store.put_function(stored("fn", version=4))
        before = bare.apps.read_namespaced_deployment("fn", "openfaas-fn").metadata.uid
        store.delete_function(KEY)
        # Another process counts versions from the functions there are: it may come to one that was used.
        store.put_function(stored("fn", version=4))
        assert bare.apps.read_namespaced_deployment("fn", "openfaas-fn").metadata.uid != before

    def test_a_deployment_of_somebody_else_is_left_alone(self, store: KubernetesStore, bare: Cluster) -> None:
        template = {"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "x", "image": "x"}]}}
        theirs = {"selector": {"matchLabels": {"app": "x"}}, "template": template}
        bare.apps.create_namespaced_deployment("openfaas-fn", {"metadata": {"name": "fn"}, "spec": theirs})
        with pytest.raises(GnomonError) as refused:
            store.put_function(stored("fn"))
        assert (refused.value.status, refused.value.code) == (409, "foreign_deployment")
        assert store.delete_function(KEY) is False
        assert list(store.functions()) == []

    def test_secrets_are_what_users_of_faas_netes_know(self, store: KubernetesStore, bare: Cluster) -> None:
        store.put_secret(FunctionKey("api-key"), b"s3cret")
        made = bare.core.read_namespaced_secret("api-key", "openfaas-fn")
        assert made.metadata.labels == {"app.kubernetes.io/managed-by": "openfaas"}
        assert {name: base64.b64decode(value) for name, value in made.data.items()} == {"api-key": b"s3cret"}

    def test_a_secret_made_with_kubectl_is_read_but_neither_listed_nor_changed(
        self, store: KubernetesStore, bare: Cluster
    ) -> None:
        bare.core.create_namespaced_secret("openfaas-fn", {"metadata": {"name": "theirs"}, "stringData": {"file.txt": "text"}})
        assert store.secret(FunctionKey("theirs")) == b"text"
        assert list(store.secrets("openfaas-fn")) == []
        for change in (lambda: store.put_secret(FunctionKey("theirs"), b"x"), lambda: store.delete_secret(FunctionKey("theirs"))):
            with pytest.raises(GnomonError) as refused:
                change()
            assert refused.value.code == "foreign_secret"

    def test_a_secret_of_a_registrys_type_pulls_the_image(self, store: KubernetesStore, bare: Cluster) -> None:
        login = {".dockerconfigjson": '{"auths":{"registry.example":{"auth":"eDp5"}}}'}
        made = {"metadata": {"name": "registry"}, "type": "kubernetes.io/dockerconfigjson", "stringData": login}
        bare.core.create_namespaced_secret("openfaas-fn", made)
        store.put_secret(FunctionKey("api-key"), b"s3cret")
        store.put_function(stored("fn", secrets=["api-key", "registry"]))
        pod = bare.apps.read_namespaced_deployment("fn", "openfaas-fn").spec.template.spec
        assert [secret.name for secret in pod.image_pull_secrets] == ["registry"]
        [files] = [volume.projected.sources for volume in pod.volumes if volume.name == "secrets"]
        assert [file.secret.name for file in files] == ["api-key", "fn.gnomon"]

    def test_no_function_gets_the_token_of_another_by_its_name(self, store: KubernetesStore, bare: Cluster) -> None:
        store.put_function(stored("fn"))
        assert bare.core.read_namespaced_secret("fn.gnomon", "openfaas-fn").data
        assert store.secret(FunctionKey("fn.gnomon")) is None
        assert store.delete_secret(FunctionKey("fn.gnomon")) is False

    def test_a_namespace_that_is_marked_with_kubectl_is_one(self, store: KubernetesStore, bare: Cluster) -> None:
        changes: list[None] = []
        store.watch_namespaces(lambda: changes.append(None))
        bare.core.patch_namespace("staging", {"metadata": {"annotations": {"openfaas": "1", "team": "vision"}}})
        until(lambda: list(store.namespaces()), "the namespace")
        assert list(store.namespaces()) == [StoredNamespace("staging")], "what else it has is its owner's"
        assert changes
        store.put_namespace(StoredNamespace("staging", {"app.kubernetes.io/part-of": "shop"}))
        assert list(store.namespaces()) == [StoredNamespace("staging", {"app.kubernetes.io/part-of": "shop"})]
        store.delete_namespace("staging")
        left = bare.core.read_namespace("staging").metadata
        assert left.annotations == {"team": "vision"}, "its owner keeps it"
        assert "app.kubernetes.io/part-of" not in left.labels

    def test_a_namespace_that_is_made_takes_only_restricted_pods(self, store: KubernetesStore, bare: Cluster) -> None:
        store.put_namespace(StoredNamespace("made"))
        labels = bare.core.read_namespace("made").metadata.labels
        assert labels["pod-security.kubernetes.io/enforce"] == "restricted"

    def test_refusal_of_kubernetes_names_the_field(self, store: KubernetesStore) -> None:
        with pytest.raises(GnomonError) as refused:
            store.put_function(stored("fn", namespace="nowhere"))
        assert (refused.value.status, refused.value.code) == (404, "kubernetes_missing")
        with pytest.raises(GnomonError) as refused:
            store.put_namespace(StoredNamespace("dev", {"team": "é"}))
        assert refused.value.code == "invalid_label"


def test_a_store_of_one_namespace_asks_for_no_other(bare: Cluster) -> None:
    store = KubernetesStore(connect(bare.kubeconfig), namespace="openfaas-fn")
    other = opened(bare.kubeconfig)
    other.put_function(stored("fn", namespace="other"))
    store.put_function(stored("fn"))
    assert [found.spec.key for found in store.functions()] == [KEY]
    with pytest.raises(GnomonError) as refused:
        store.put_namespace(StoredNamespace("dev"))
    assert refused.value.code == "one_namespace"
    for connection in (store, other):
        connection.close()


async def test_the_namespace_of_functions_is_made_once_and_left_as_it_is_afterwards(bare: Cluster) -> None:
    writer = Writer(connect(bare.kubeconfig), WallClock(), random.Random(1))
    await require_namespace(writer, "fresh")
    made = bare.core.read_namespace("fresh")
    assert made.metadata.labels["pod-security.kubernetes.io/enforce"] == "restricted"
    bare.core.patch_namespace("fresh", {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}})
    await require_namespace(writer, "fresh")
    assert bare.core.read_namespace("fresh").metadata.labels["pod-security.kubernetes.io/enforce"] == "baseline"
    writer.close()


def test_standby_reads_and_does_not_write(bare: Cluster) -> None:
    def refuse() -> None:
        raise GnomonError(503, "not_leading", "Another process leads.")

    store = KubernetesStore(connect(bare.kubeconfig), fence=refuse)
    assert list(store.functions()) == []
    attempts: list[Any] = [
        lambda: store.put_function(stored("fn")),
        lambda: store.put_secret(FunctionKey("s"), b"x"),
        lambda: store.put_namespace(StoredNamespace("dev")),
    ]
    for attempt in attempts:
        with pytest.raises(GnomonError) as refused:
            attempt()
        assert refused.value.code == "not_leading"
    with pytest.raises(ApiException):
        bare.apps.read_namespaced_deployment("fn", "openfaas-fn")
    store.close()
