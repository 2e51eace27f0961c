"""`kubectl apply -k` of the two folders for models, on a control plane without nodes: what is joined there fits together."""

from __future__ import annotations

from pathlib import Path

from kubernetes import client

from tests.cluster import build
from tests.cluster.client import Cluster, Kubectl

MODELS = Path(__file__).parents[3] / "deploy" / "openfaas-models"


def test_gateway_functions_and_pools_have_the_same_models(own_plane: Cluster, compiled: build.Programs) -> None:
    Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)("apply", "--validate=strict", "-k", str(MODELS))
    core, apps = own_plane.core, own_plane.apps
    pool = apps.read_namespaced_daemon_set("coordinator", "gnomon-nodes").spec.template.spec
    [of_the_node] = [volume.host_path.path for volume in pool.volumes if volume.name == "models"]
    for namespace in ("openfaas", "openfaas-fn"):
        claim = core.read_namespaced_persistent_volume_claim("models", namespace)
        volume = core.read_persistent_volume(claim.spec.volume_name)
        assert (volume.spec.claim_ref.namespace, volume.spec.claim_ref.name) == (namespace, "models")
        assert volume.spec.host_path.path == of_the_node

    gateway = apps.read_namespaced_deployment("gateway", "openfaas").spec.template.spec
    [container] = gateway.containers
    assert {"--models=/models", "--models-claim=models", "--coordinator-token=/var/secrets/coordinator/token"} <= {
        *container.args
    }
    mounted = {volume_mount.name: volume_mount.mount_path for volume_mount in container.volume_mounts}
    assert (mounted["models"], mounted["coordinator-token"]) == ("/models", "/var/secrets/coordinator")
    secret = {volume.name: volume.secret.secret_name for volume in gateway.volumes if volume.secret}["coordinator-token"]
    assert secret in [volume.secret.secret_name for volume in pool.volumes if volume.secret]


def test_on_knative_the_class_has_the_pools_models_and_their_coordinators(own_plane: Cluster, compiled: build.Programs) -> None:
    own_plane.core.create_namespace({"metadata": {"name": "knative-serving"}})
    folder = MODELS.parent / "knative-models"
    Kubectl(compiled.folder / "kubectl", own_plane.kubeconfig)("apply", "--validate=strict", "-k", str(folder))
    core, apps = own_plane.core, own_plane.apps
    pool = apps.read_namespaced_daemon_set("coordinator", "gnomon-nodes").spec.template
    claim = core.read_namespaced_persistent_volume_claim("models", "knative-serving")
    volume = core.read_persistent_volume(claim.spec.volume_name)
    assert volume.spec.host_path.path in [volume.host_path.path for volume in pool.spec.volumes if volume.name == "models"]

    scaler = apps.read_namespaced_deployment("gnomon-autoscaler", "knative-serving").spec.template
    [container] = scaler.spec.containers
    assert {"--models=/models", "--coordinator-token=/var/secrets/coordinator/token"} <= {*container.args}
    mounted = {volume_mount.name: volume_mount.mount_path for volume_mount in container.volume_mounts}
    assert (mounted["models"], mounted["coordinator-token"]) == ("/models", "/var/secrets/coordinator")
    secret = {volume.name: volume.secret.secret_name for volume in scaler.spec.volumes if volume.secret}["coordinator-token"]
    assert secret in [volume.secret.secret_name for volume in pool.spec.volumes if volume.secret]

    # It may resize the pools, and is let in.
    binding = client.RbacAuthorizationV1Api(own_plane.api).read_namespaced_role_binding("gnomon-pools-knative", "gnomon-nodes")
    assert [(subject.name, subject.namespace) for subject in binding.subjects] == [
        (scaler.spec.service_account_name, "knative-serving")
    ]
    policy = client.NetworkingV1Api(own_plane.api).read_namespaced_network_policy("coordinator-knative", "gnomon-nodes").spec
    [peer] = policy.ingress[0]._from
    assert peer.pod_selector.match_labels.items() <= scaler.metadata.labels.items()
    ports = {port.container_port for container in pool.spec.containers for port in container.ports or ()}
    assert {port.port for port in policy.ingress[0].ports} <= ports
