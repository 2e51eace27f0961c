"""What `gnomon doctor` says of what it finds, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gnomon_cli.doctor.cluster import kubelet, minor
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


def test_who_lacks_jemalloc_is_told_what_it_costs_and_how_to_have_it() -> None:
    level, message, hint = allocator(None)
    assert (level, "jemalloc" in message, "libjemalloc2" in hint) == (Level.WARN, True, True)
    assert allocator(Path("/usr/lib/libjemalloc.so.2"))[0] is Level.OK


def test_this_machine_is_looked_at_in_json(tmp_path: Path) -> None:
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
    assert result.output.startswith("fail  API server: There is no way to a cluster")


def test_a_service_account_is_named_with_its_namespace() -> None:
    result = CliRunner().invoke(gnomon, ["doctor", "--platform", "openfaas", "--service-account", "gateway"])
    assert result.exit_code == 2
    assert "NAMESPACE:NAME" in result.output
