"""Fixtures that several kinds of tests need."""

from __future__ import annotations

import io
import json
import os
import signal
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from gnomon_platforms.aws_lambda.testing.account import Account

# A shell that runs the tests in the background has them ignore Ctrl-C, and the programs that they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples each time, and no clock over any of them: what is red here is red everywhere, and a machine that stalls is no
# failure. `--hypothesis-profile=default` looks for other examples.
hypothesis.settings.register_profile(
    "gnomon", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], print_blob=True
)
hypothesis.settings.load_profile("gnomon")

# Tests of engines convert models; elsewhere it would take a core for half a minute from whatever is tested.
os.environ.setdefault("GNOMON_CONVERT", "false")

ECHO = "def handle(event, context):\n    return event.body\n"


@pytest.fixture(scope="session")
def build_archive() -> Callable[..., bytes]:
    """Makes archives as faas-cli sends them: template and handler overlaid, and the build's configuration."""

    def make(
        handler: str = ECHO,
        requirements: str | None = None,
        *,
        image: str = "ada/echo:1",
        language: str | None = "python3-http",
        files: dict[str, str] | None = None,
    ) -> bytes:
        contents = {"context/function/handler.py": handler, **(files or {})}
        if language is not None:
            contents["context/template.yml"] = f"language: {language}\nfprocess: python index.py\n"
        if requirements is not None:
            contents["context/function/requirements.txt"] = requirements
        contents["com.openfaas.docker.config"] = json.dumps({"image": image, "buildArgs": {"PYTHON_VERSION": "3.12"}})
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, text in contents.items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                tar.addfile(info, io.BytesIO(text.encode()))
        return stream.getvalue()

    return make


@pytest.fixture
def build_archive_file(tmp_path: Path, build_archive: Callable[..., bytes]) -> Callable[..., Path]:
    """The archive of a build, in a file."""

    def make(*arguments: str, **options: str) -> Path:
        path = tmp_path / "request.tar"
        path.write_bytes(build_archive(*arguments, **options))
        return path

    return make


@pytest.fixture(scope="session")
def moto_address() -> Iterator[str]:
    """Where moto's server answers for AWS."""
    from gnomon_platforms.aws_lambda.testing.account import backend  # noqa: PLC0415 - boto3 is only for those who ask

    with backend() as address:
        yield address


@pytest.fixture
def aws(moto_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    """An account of AWS that boto3's chain finds."""
    from gnomon_platforms.aws_lambda.testing.account import account  # noqa: PLC0415 - as above

    with account(tmp_path, moto_address) as made:
        for name, value in made.variables.items():
            monkeypatch.setenv(name, value)
        yield made
