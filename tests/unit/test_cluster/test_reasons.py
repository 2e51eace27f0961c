"""Where no cluster can be had, the reason is said; that skips tests, and fails whoever asked for a cluster or for conformance."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.test_cluster import needs

ROOT = Path(__file__).resolve().parents[3]


def asked(words: list[str], cache: Path, prefix: tuple[str, ...] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    return asked_of("deploy.test_cluster", words, cache, prefix, **environment)


def asked_of(
    module: str, words: list[str], cache: Path, prefix: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "GNOMON_CLUSTER_CACHE": str(cache), **environment}
    everything.pop("KUBECONFIG", None)
    command = [*prefix, sys.executable, "-m", module, *words]
    return subprocess.run(command, cwd=ROOT, env=everything, capture_output=True, text=True, check=False)


@pytest.fixture
def nobody() -> tuple[str, ...]:
    """What makes a command run as an ordinary user."""
    if os.geteuid():
        return ()
    if subprocess.run(["unshare", "--user", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this kernel makes no user namespaces")
    return ("unshare", "--user")


def test_an_ordinary_user_without_a_cluster_skips(nobody: tuple[str, ...], tmp_path: Path) -> None:
    done = asked(["run", "--", "echo", "run"], tmp_path, nobody)
    assert done.returncode == 0
    assert "needs root" in done.stderr
    assert "run" not in done.stdout


def test_an_ordinary_user_who_asks_for_a_cluster_is_refused(nobody: tuple[str, ...], tmp_path: Path) -> None:
    done = asked(["up"], tmp_path, nobody)
    assert done.returncode == 3
    assert "needs root" in done.stderr
    assert not (tmp_path / "state").exists()


def test_root_without_its_powers_skips(tmp_path: Path) -> None:
    """As in most containers."""
    if os.geteuid():
        pytest.skip("needs root")
    bound = ("setpriv", "--inh-caps=-net_admin", "--bounding-set=-net_admin")
    done = asked(["run", "--", "echo", "run"], tmp_path, bound)
    assert done.returncode == 0
    assert "root lacks CAP_NET_ADMIN here" in done.stderr


def test_without_go_nothing_is_compiled(tmp_path: Path) -> None:
    done = asked(["build"], tmp_path, PATH="/usr/sbin:/sbin")
    assert done.returncode == 3
    assert "there is no `go`" in done.stderr


def test_without_modules_nothing_is_compiled(tmp_path: Path) -> None:
    """One is asked for first: who has no way to the proxy hears of it in a second, and not after a thousand attempts."""
    if shutil.which("go") is None or shutil.disk_usage(tmp_path).free < needs.BUILD_GB * 1e9:
        pytest.skip("needs go, and as much room as compiling does")
    modules = str(tmp_path / "modules")
    done = asked(["build"], tmp_path, GOPROXY="http://127.0.0.1:1", GOMODCACHE=modules, GOTOOLCHAIN="local")
    assert done.returncode == 3
    assert "the Go proxy does not give what is needed" in done.stderr or "Go 1.26 or newer" in done.stderr


def run_with(kubeconfig: str, script: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "deploy.test_cluster", "run", "--", "sh", "-ec", script]
    environment = {**os.environ, "KUBECONFIG": kubeconfig}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_command_gets_the_cluster_that_is_named_and_its_status_counts(nobody: tuple[str, ...], tmp_path: Path) -> None:
    """As any user, and wherever the command goes from where it was begun."""
    named = tmp_path / "some.conf"
    named.touch()
    script = f"cd /; test $GNOMON_TEST_KUBECONFIG -ef {named}; exit 4"
    assert run_with(str(named), script).returncode == 4
    assert run_with(os.path.relpath(named, ROOT), script, nobody).returncode == 4


def test_a_kubeconfig_that_is_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    """Each test would say so by itself, in words of its own."""
    missing = run_with("/some/where", "exit 0")
    assert missing.returncode == 1
    assert "KUBECONFIG names /some/where, and there is no such file" in missing.stderr
    several = run_with(f"{tmp_path}/a:{tmp_path}/b", "exit 0")
    assert several.returncode == 1
    assert "KUBECONFIG names several files" in several.stderr


def test_conformance_that_an_ordinary_user_asks_for_is_an_error(nobody: tuple[str, ...], tmp_path: Path) -> None:
    """Who asks what is passed must not be told by a status of 0 that all is well."""
    kept = tmp_path / "kept.json"
    done = asked_of("deploy.test_cluster.serving_conformance", ["--keep", str(kept)], tmp_path, nobody)
    assert done.returncode == 3
    assert "needs root" in done.stderr
    assert not kept.exists()


def test_conformance_without_a_cluster_is_an_error(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    done = asked_of("deploy.test_cluster.serving_conformance", [], tmp_path, PATH=str(tmp_path))
    assert done.returncode == 3
    assert "no cluster runs" in done.stderr or "no Envoy" in done.stderr
