"""The same requirements are one environment, however they are written; what their text does not tell is refused."""

from __future__ import annotations

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.local.builder.commands import settings_for_builds
from gnomon_platforms.local.builder.requirements import read_requirements


@pytest.mark.parametrize(
    "text",
    [
        "numpy==2\nidna>=3\n",
        "idna>=3\nnumpy==2",
        "\ufeffidna>=3\r\n\r\nnumpy==2\r\n",
        "# ours\nidna>=3   # names\n  numpy==2\nidna>=3\n",
    ],
)
def test_the_same_requirements_are_one_environment(text: str) -> None:
    read = read_requirements(text.encode())
    assert read.lines == ("idna>=3", "numpy==2")
    assert read.environment_id == read_requirements(b"idna>=3\nnumpy==2\n").environment_id


def test_other_requirements_are_another_environment() -> None:
    ids = {read_requirements(text).environment_id for text in (b"", b"idna", b"idna==3.10", b"--index-url https://a/ \nidna")}
    assert len(ids) == 4


def test_hashes_stay_with_their_package() -> None:
    read = read_requirements(b"idna==3.10 \\\n  --hash=sha256:aa \\\n  --hash=sha256:bb\nabc==1 --hash=sha256:cc\n")
    assert read.lines == ("abc==1 --hash=sha256:cc", "idna==3.10 --hash=sha256:aa --hash=sha256:bb")


def test_options_keep_their_order_before_the_packages() -> None:
    read = read_requirements(b"b\n--index-url https://one/\na\n--extra-index-url https://two/\n")
    assert read.lines == ("--index-url https://one/", "--extra-index-url https://two/", "a", "b")


def test_urls_are_requirements() -> None:
    lines = b"a @ https://example.org/a-1-py3-none-any.whl#sha256=00\ngit+https://example.org/b@1.0\n"
    assert len(read_requirements(lines).lines) == 2


@pytest.mark.parametrize(
    "line",
    ["-r other.txt", "-rother.txt", "--requirement=other.txt", "-c c.txt", "--constraint c.txt", "-e .", "--editable=.", ".",
     "./a", "../a", "/a", "a/b", "a @ ./b", "a @ /b", "a @ file:///b", "file:///b", "--find-links /wheels", "--find-links file:///wheels",
     "-r \\\n other.txt"],
)  # fmt: skip
def test_what_the_text_does_not_tell_is_refused(line: str) -> None:
    with pytest.raises(GnomonError, match="which is outside of it") as caught:
        read_requirements(f"idna\n{line}\n".encode())
    assert caught.value.status == 422


@pytest.mark.parametrize("content", [b"\xff", bytes(300_000)])
def test_what_is_no_text_is_refused(content: bytes) -> None:
    with pytest.raises(GnomonError):
        read_requirements(content)


def test_a_build_gets_the_operators_indexes_and_nothing_else() -> None:
    environment = {
        "PATH": "/ours", "HOME": "/root", "PYTHONPATH": "/ours", "LD_PRELOAD": "x", "UV_CACHE_DIR": "/ours", "basic_auth": "true",
        "AWS_SECRET_ACCESS_KEY": "secret", "PIP_INDEX_URL": "https://pip/", "PIP_EXTRA_INDEX_URL": "https://extra/",
        "UV_DEFAULT_INDEX": "https://uv/", "https_proxy": "http://proxy", "SSL_CERT_FILE": "/etc/cert",
    }  # fmt: skip
    assert settings_for_builds(environment) == {
        "UV_DEFAULT_INDEX": "https://uv/",
        "UV_EXTRA_INDEX_URL": "https://extra/",
        "https_proxy": "http://proxy",
        "SSL_CERT_FILE": "/etc/cert",
    }
