"""What torch does not load goes from an image, what it loads stays."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

MODULE = runpy.run_path(str(Path(__file__).parents[3] / "templates" / "gnomon-body" / "slim_torch.py"))
named_by, slim = MODULE["named_by"], MODULE["slim"]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Two libraries of a vendor, of which torch's own names one; its sources lie elsewhere."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    site, source = tmp_path / "site-packages", tmp_path / "empty.c"
    source.write_text("int answer(void) { return 42; }\n")
    vendor = site / "nvidia" / "cu13" / "lib"
    for folder in (vendor, site / "torch" / "lib", site / "triton"):
        folder.mkdir(parents=True)
    for name in ("libcudart.so.13", "libcard.so.1"):
        subprocess.run([compiler, "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", vendor / name, source], check=True)
    (vendor / "libcard.so").symlink_to("libcard.so.1")
    (vendor / "libcudart.so").symlink_to("libcudart.so.13")
    place = "-Wl,-rpath,$ORIGIN/../../nvidia/cu13/lib"
    entry = ["-o", site / "torch" / "lib" / "libtorch_python.so", source, vendor / "libcudart.so.13"]
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,--no-as-needed", place, *entry], check=True)
    (site / "triton" / "compiler").write_bytes(b"0" * 1000)
    return site


def test_only_what_nothing_loads_is_removed(packages: Path) -> None:
    vendor = packages / "nvidia" / "cu13" / "lib"
    size_bytes = (vendor / "libcard.so.1").stat().st_size
    assert vendor / "libcudart.so.13" in named_by(packages / "torch" / "lib" / "libtorch_python.so")
    assert slim(packages / "torch") == size_bytes + 1000
    assert sorted(path.name for path in vendor.iterdir()) == ["libcudart.so", "libcudart.so.13"]
    assert not (packages / "triton").exists()
    # A second time there is nothing left to remove.
    assert slim(packages / "torch") == 0


def test_a_build_for_the_processor_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "torch" / "lib" / "libtorch_python.so").write_bytes(b"")
    (tmp_path / "triton").mkdir()
    assert slim(tmp_path / "torch") == 0
    assert (tmp_path / "triton").exists()
