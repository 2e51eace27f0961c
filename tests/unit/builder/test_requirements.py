"""The same requirements are one environment, however they are written; what their text does not tell is refused."""

import asyncio
import socket

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.local.builder.environments import settings_for_builds
from gnomon_platforms.local.builder.requirements import endpoints, read_requirements
from tests.refusals import refused


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
def test_incomplete_requirement_is_refused(line: str) -> None:
    with refused(422, match="which is outside of it"):
        read_requirements(f"idna\n{line}\n".encode())


@pytest.mark.parametrize("content", [b"\xff", bytes(300_000)])
def test_binary_requirements_file_is_refused(content: bytes) -> None:
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


LOCAL_HOSTS = (
    "127.0.0.1",
    "127.1",
    "2130706433",
    "0x7f.1",
    "0177.0.0.1",
    "127.0.0.1.",
    "0.0.0.0",
    "0",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[fe80::1]",
    "169.254.169.254",
    "localhost",
    "LocalHost.",
    "a.localhost",
    "ip6-localhost",
    "user:pass@127.0.0.1",
    "example.org@127.0.0.1",
    "%31%32%37.0.0.1",
    "\uff11\uff12\uff17.0.0.1",
)
FORMS = (
    "a @ http://{}/a.whl",
    "git+https://{}/b",
    "--index-url http://{}:8080/simple",
    "--extra-index-url=https://{}/",
    "-i http://{}",
    "--find-links http://{}/wheels",
    "http://{}:9200/_cat",
    "a @ HTTP://{}/a.whl",
    "a @ http://{}\\@example.org/",
)


@pytest.mark.parametrize("host", LOCAL_HOSTS)
@pytest.mark.parametrize("form", FORMS)
def test_urls_of_this_machine_and_of_its_link_are_refused(form: str, host: str) -> None:
    with refused(422, "bad_requirements", match="this machine's or its link's"):
        read_requirements(form.format(host).encode())


@pytest.mark.parametrize(
    "line",
    [
        "a @ http:127.0.0.1/a.whl",
        "a @ http:/127.0.0.1/#://",
        "a @ http:\\\\127.0.0.1\\a",
        "a @ http:///127.0.0.1/a",
        "a @ http://:80/a",
        "a @ http://example.org:x/a",
        "a @ http://example.org:99999/a",
        "a @ https://${HOST}/a",
        "--index-url ${UV_INDEX_URL}",
    ],
)
def test_urls_that_readers_understand_in_different_ways_are_refused(line: str) -> None:
    with refused(422, "bad_requirements"):
        read_requirements(line.encode())


@pytest.mark.parametrize(
    "line",
    [
        "a @ https://127.0.0.1.example.org/a.whl",
        "a @ https://localhost.example.org/a",
        "git+ssh://git@example.org/a",
        "a==1 --hash=sha256:00",
        "--index-url https://user:word@10.0.0.7:8443/simple",
        "a @ https://[2001:db8::1]:8443/a.whl",
        "a @ https://example.org/?u=http%3A//127.0.0.1/",
    ],
)
def test_urls_elsewhere_are_requirements(line: str) -> None:
    assert read_requirements(line.encode()).lines == (line,)


async def test_a_name_that_means_this_machine_is_refused_before_anything_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        if host == "nowhere.example.org":
            raise socket.gaierror
        return [(2, 1, 6, "", ("127.0.0.1" if host == "near.example.org" else "192.0.2.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    await read_requirements(b"a @ https://far.example.org/a\nb @ https://nowhere.example.org/b\n").check_hosts()
    with pytest.raises(GnomonError, match=r"near\.example\.org"):
        await read_requirements(b"a @ https://far.example.org/a\nb @ https://near.example.org:9200/b\n").check_hosts()


def test_the_ports_of_urls_are_those_that_a_build_may_connect_to() -> None:
    assert endpoints("private=https://user@a:8443/simple") == [("a", 8443)]
    assert endpoints("socks5://[2001:db8::1]") == [("2001:db8::1", 1080)]
    assert endpoints("a @ git+ssh://git@b/c") == [("b", 22)]
    assert endpoints("idna==3.10 --hash=sha256:aa") == []
