# noqa: INP001 - a template is no package
"""Removes from an image what torch brings for graphics cards and does not need without one, in the step that installs it.

PyPI's build of torch for Linux on x86 comes with 4 GB of NVIDIA's libraries and a compiler for kernels. Some of them are named by
torch's own libraries, so that the loader wants them wherever torch is imported; the others are opened when a card is used. The
first stay, the others go: 5.2 GB become 2.7. A build of torch for the processor has none of them, and nothing is removed.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

COMPILERS = ("triton",)
VENDOR = "nvidia"
ENTRY = Path("lib", "libtorch_python.so")
"""The modules that `import torch` loads, and through it everything else."""
TRIAL = "import torch; assert float((torch.ones(8, 8) @ torch.ones(8, 8)).sum()) == 512.0"


def named_by(library: Path) -> frozenset[Path]:
    """The libraries that the loader loads with this one, without links.

    Raises:
        subprocess.CalledProcessError: it is no library of this machine.

    """
    said = subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=True).stdout
    return frozenset(Path(path).resolve() for path in re.findall(r"=> (/\S+)", said))


def slim(torch: Path) -> int:
    """Remove what the torch in this folder does not load; the bytes that are gone."""
    entry, packages = torch / ENTRY, torch.parent
    if not entry.exists() or not (packages / VENDOR).is_dir():
        return 0
    kept, freed_bytes = named_by(entry), 0
    for path in sorted((packages / VENDOR).rglob("*"), reverse=True):
        if path.is_symlink():
            if not path.exists():
                path.unlink()
        elif path.is_file() and path.resolve() not in kept:
            freed_bytes += path.stat().st_size
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
    for name in COMPILERS:
        folder = packages / name
        freed_bytes += sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        shutil.rmtree(folder, ignore_errors=True)
    return freed_bytes


def main() -> None:
    """Slim the torch of this interpreter, and see that it still computes."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return
    freed_bytes = slim(Path(found.origin).parent)
    subprocess.run([sys.executable, "-c", TRIAL], check=True)
    sys.stdout.write(f"{freed_bytes / 1e9:.1f} GB are gone that only a graphics card needs\n")


if __name__ == "__main__":
    main()
