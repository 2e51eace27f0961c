"""gnomon doctor."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gnomon_cli.doctor.cluster import NAMESPACE_LABEL, ClientPod, PodPort, enforced, ingress_rules, kubelet, minor, rule_allows
from gnomon_cli.doctor.findings import Finding, Level, failed, run_checks
from gnomon_cli.doctor.machine import allocator, huge_pages
from gnomon_cli.doctor.openfaas import targeting
from gnomon_cli.main import gnomon
from gnomon_core.errors import GnomonError
from gnomon_platforms.kubernetes.client import Refused, Unreachable
from gnomon_platforms.kubernetes.resources import AUTOSCALERS, SCALED_OBJECTS


def fine() -> tuple[Level, str, str]:
    return Level.OK, "Fine.", ""


def raising(error: Exception) -> Any:
    def look() -> tuple[Level, str, str]:
        raise error

    return look


def test_a_check_that_cannot_look_leaves_the_others_to_look() -> None:
    refused = Refused(403, "Forbidden", "nodes is forbidden")
    found = run_checks(
        [("first", raising(refused)), ("second", raising(GnomonError(500, "no_disk", "Full.", "Make room."))), ("third", fine)]
    )
    assert [finding.level for finding in found] == [Level.WARN, Level.FAIL, Level.OK]
    assert "nodes is forbidden" in found[0].message
    assert found[1].hint == "Make room."
    assert failed(found)
    assert not failed([found[0], found[2]])


def test_nothing_is_looked_at_behind_a_check_that_the_others_need() -> None:
    found = run_checks([("API server", raising(Unreachable("no route"))), ("nodes", fine)], frozenset({"API server"}))
    assert [finding.check for finding in found] == ["API server"]
    assert run_checks([("API server", fine), ("nodes", fine)], frozenset({"API server"}))[-1].check == "nodes"


def test_a_finding_is_one_line_whatever_it_says() -> None:
    assert Finding("disk", Level.WARN, "Two\nlines.", "Do\nthis.").line == "warn  disk: Two lines. Do this."


@pytest.mark.parametrize(("text", "found"), [("v1.35.4+k3s1", (1, 35)), ("1.9", (1, 9)), ("", None), ("devel", None)])
def test_a_version_is_read_as_far_as_it_matters(text: str, found: tuple[int, int] | None) -> None:
    assert minor(text) == found


def test_an_old_node_is_told_from_one_that_says_nothing() -> None:
    assert kubelet({"status": {"nodeInfo": {"kubeletVersion": "v1.29.1"}}}) < kubelet({"status": {}})


def test_only_what_targets_a_function_of_ours_is_a_rival() -> None:
    def scaler(called: str, **target: str) -> dict[str, Any]:
        return {"metadata": {"name": called}, "spec": {"scaleTargetRef": target}}

    items = [
        scaler("mine", kind="Deployment", name="classify"),
        scaler("set", kind="StatefulSet", name="classify"),
        scaler("other", kind="Deployment", name="shop"),
        {"metadata": {"name": "empty"}, "spec": {}},
    ]
    assert targeting(AUTOSCALERS, items, {"classify"}) == ["HorizontalPodAutoscaler mine → classify"]
    # KEDA's target is a Deployment unless it says otherwise.
    assert targeting(SCALED_OBJECTS, [scaler("queue", name="classify")], {"classify"}) == ["ScaledObject queue → classify"]


def test_huge_pages_need_the_kernel_and_its_setting(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    assert huge_pages(setting, "6.1.0-13-amd64")[0] is Level.WARN
    setting.write_text("always [madvise] never\n")
    assert huge_pages(setting, "6.1.0-13-amd64")[:2] == (
        Level.OK,
        "Transparent huge pages are there (madvise), and can be asked for.",
    )
    assert huge_pages(setting, "5.15.0")[0] is Level.WARN


def test_doctor_explains_missing_jemalloc() -> None:
    level, message, hint = allocator(None)
    assert (level, "jemalloc" in message, "libjemalloc2" in hint) == (Level.WARN, True, True)
    assert allocator(Path("/usr/lib/libjemalloc.so.2"))[0] is Level.OK


def test_doctor_reports_on_this_machine_in_json(tmp_path: Path) -> None:
    result = CliRunner().invoke(gnomon, ["doctor", "--json", "--state", str(tmp_path / "state")])
    found = {finding["check"]: finding["level"] for finding in json.loads(result.output)}
    assert set(found) == {"memory and disk", "control groups", "huge pages", "memory allocator", "models"}
    assert result.exit_code == ("fail" in found.values())
    assert not (tmp_path / "state").exists()


def test_a_cluster_that_does_not_answer_is_one_line_and_a_failure(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    # Port 1 of this machine: nobody listens there.
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }
    kubeconfig.write_text(json.dumps(document))
    result = CliRunner().invoke(gnomon, ["doctor", "--platform", "openfaas", "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 1
    (line,) = result.output.splitlines()
    assert line.startswith("fail  API server: The API server does not answer")


def test_a_kubeconfig_that_is_none_is_a_failure_too(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text("{}")
    result = CliRunner().invoke(gnomon, ["doctor", "--platform", "knative", "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 1
    assert result.output.startswith("fail  API server: No cluster is configured")


def test_a_service_account_is_named_with_its_namespace() -> None:
    result = CliRunner().invoke(gnomon, ["doctor", "--platform", "openfaas", "--service-account", "gateway"])
    assert result.exit_code == 2
    assert "NAMESPACE:NAME" in result.output


SERVING, CLASS = {NAMESPACE_LABEL: "knative-serving"}, {"app": "class", "pod-template-hash": "x"}
PORTS = {"ports": [{"port": 7468, "protocol": "TCP"}]}


def peer(namespace: dict[str, Any], pod: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"namespaceSelector": namespace, **({} if pod is None else {"podSelector": pod})}


@pytest.mark.parametrize(
    ("rule", "let_in"),
    [
        ({}, True),
        (PORTS, True),
        ({"ports": [{"port": 7469}]}, False),
        ({"ports": [{"protocol": "TCP"}]}, True),
        ({"ports": [{"port": 7468, "protocol": "UDP"}]}, False),
        ({"ports": [{"port": 7000, "endPort": 7468}]}, True),
        ({"ports": [{"port": 7469, "endPort": 8000}, {"port": 7000, "endPort": 7467}]}, False),
        ({"ports": [{"port": "control"}]}, True),
        ({"ports": [{"port": "pairs"}]}, False),
        ({**PORTS, "from": [peer({"matchLabels": SERVING}, {"matchLabels": {"app": "class"}})]}, True),
        ({**PORTS, "from": [peer({"matchLabels": SERVING})]}, True),
        ({**PORTS, "from": [peer({}, {"matchLabels": {"app": "other"}})]}, False),
        ({**PORTS, "from": [peer({"matchLabels": {"kubernetes.io/metadata.name": "openfaas"}})]}, False),
        ({**PORTS, "from": [peer({"matchLabels": {"kubernetes.io/metadata.name": "openfaas"}}), peer({})]}, True),
        ({**PORTS, "from": [peer({}, {"matchExpressions": [{"key": "app", "operator": "Exists"}]})]}, True),
        ({**PORTS, "from": [peer({}, {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["class"]}]})]}, False),
        # Of the policy's own namespace, which is that of the nodes' coordinators.
        ({**PORTS, "from": [{"podSelector": {}}]}, False),
        ({**PORTS, "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}, True),
    ],
)
def test_a_rule_lets_in_whom_it_names_at_its_ports(rule: dict[str, Any], let_in: bool) -> None:  # noqa: FBT001 - a table's column
    assert rule_allows(rule, PodPort(7468, {"control": 7468, "pairs": 7469}), ClientPod(SERVING, CLASS)) is let_in


@pytest.mark.parametrize(
    ("peer_of_ours", "same_namespace", "let_in"),
    [
        ({"podSelector": {"matchLabels": {"app": "class"}}}, True, True),
        ({"podSelector": {"matchLabels": {"app": "other"}}}, True, False),
        ({"podSelector": {"matchLabels": {"app": "class"}}}, False, False),
        # With a selector of namespaces its own is one like any other.
        (peer({"matchLabels": SERVING}), True, True),
        (peer({"matchLabels": {NAMESPACE_LABEL: "openfaas"}}), True, False),
    ],
)
def test_a_peer_without_a_namespace_is_of_the_policys_own(
    peer_of_ours: dict[str, Any],
    same_namespace: bool,  # noqa: FBT001 - as below
    let_in: bool,  # noqa: FBT001 - a table's columns
) -> None:
    assert (
        rule_allows({"from": [peer_of_ours]}, PodPort(8080), ClientPod(SERVING, CLASS, same_namespace=same_namespace)) is let_in
    )


RULE = {"from": [{"namespaceSelector": {}}]}


def policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "one"}, "spec": {"podSelector": {}, **spec}}


@pytest.mark.parametrize(
    ("policies", "rules"),
    [
        ([], None),
        ([policy()], []),
        ([policy(policyTypes=["Ingress", "Egress"], ingress=[RULE]), policy()], [RULE]),
        # These shut nobody out: one is about where pods go, and one about other pods.
        ([policy(policyTypes=["Egress"])], None),
        ([policy(podSelector={"matchLabels": {"app": "another"}})], None),
        ([policy(podSelector={"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]})], None),
    ],
)
def test_only_ingress_policies_that_select_a_pod_isolate_it(
    policies: list[dict[str, Any]], rules: list[dict[str, Any]] | None
) -> None:
    assert ingress_rules(policies, {"app": "coordinator"}) == rules


def daemon(name: str, *, wanted: int = 2, ready: int = 2) -> dict[str, Any]:
    status = {"desiredNumberScheduled": wanted, "numberReady": ready}
    return {"metadata": {"name": name, "namespace": "kube-system"}, "status": status}


def node(version: str, **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": version, "annotations": annotations}, "status": {"nodeInfo": {"kubeletVersion": version}}}


PLAIN, K3S = node("v1.35.4"), node("v1.35.4+k3s1")


def test_the_agent_that_enforces_policies_is_named() -> None:
    level, said, hint = enforced([daemon("kube-proxy"), daemon("calico-node")], [PLAIN])
    assert (level, hint) == (Level.OK, "")
    assert said == "calico-node in kube-system enforces NetworkPolicies."


def test_an_agent_that_is_missing_on_a_node_enforces_nothing_there() -> None:
    level, said, _ = enforced([daemon("cilium", wanted=3)], [PLAIN])
    assert level is Level.WARN
    assert "not ready on 1 of 3 nodes" in said
    # Of two, as on a cluster that changes its network, the one that is whole counts.
    assert enforced([daemon("calico-node", ready=0), daemon("cilium")], [PLAIN])[0] is Level.OK


def test_where_no_agent_is_known_it_is_said_that_it_is_not_known() -> None:
    level, said, hint = enforced([daemon("kube-proxy"), daemon("kube-flannel-ds")], [PLAIN])
    assert level is Level.WARN
    assert "No known enforcer" in said
    assert "install-on-kubernetes.md" in hint


def test_k3s_enforces_them_itself_unless_it_was_told_not_to() -> None:
    assert enforced([], [K3S])[0] is Level.OK
    disabled = node("v1.35.4+k3s1", **{"k3s.io/node-args": '["server","--disable-network-policy"]'})
    assert enforced([], [K3S, disabled])[0] is Level.WARN
    assert enforced([], [K3S, PLAIN])[0] is Level.WARN
    assert enforced([], [])[0] is Level.WARN
