"""What is pinned once is used everywhere, and a change of it is a change of what is compiled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from deploy.test_cluster import build, knative, needs
from deploy.test_cluster.phases import CannotBeHad


def test_programs_say_the_version_that_is_pinned() -> None:
    version = build.version("k8s.io/kubernetes")
    assert f"-X k8s.io/component-base/version.gitVersion={version} " in build.linker_flags() + " "
    assert f"gitMinor={version.split('.')[1]}" in build.linker_flags()


def test_another_pin_is_another_folder(tmp_path: Path) -> None:
    copy = tmp_path / "programs"
    shutil.copytree(build.SOURCES, copy)
    same = build.digest(copy)
    assert same == build.digest(build.SOURCES)
    (copy / "go.mod").write_text((copy / "go.mod").read_text().replace("v0.50.0", "v0.50.1"))
    assert build.digest(copy) != same


def test_knatives_objects_get_our_images_and_leave_room_for_functions() -> None:
    container = {"image": "ko://knative.dev/serving/cmd/queue", "resources": {"requests": {"cpu": "300m"}}, "readinessProbe": {}}
    item = {
        "kind": "Deployment",
        "metadata": {"name": "activator"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    (adapted,) = knative.adapted(item)["spec"]["template"]["spec"]["containers"]
    assert adapted["image"] == "dev.local/queue:v1"
    assert adapted["resources"]["requests"] == {"cpu": "0"}


def test_a_disk_without_room_is_a_reason_to_skip(tmp_path: Path) -> None:
    with pytest.raises(CannotBeHad, match="GB of disk are needed"):
        needs.room(tmp_path / "not" / "there", 1e9)


@pytest.mark.parametrize(
    "said",
    [
        "k8s.io/api@v0.35.7: reading https://proxy.golang.org/k8s.io/api/@v/v0.35.7.zip: 403 Forbidden",
        "dial tcp: lookup proxy.golang.org: no such host",
    ],
)
def test_a_proxy_that_refuses_is_told_from_code_that_does_not_compile(said: str) -> None:
    assert build.REFUSED.search(said)
    assert not build.REFUSED.search("coredns/main.go:5:2: undefined: coremain")
