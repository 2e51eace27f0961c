"""Small values: addresses, dates, names, results, networks."""

from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.addresses import bracketed, from_this_machine, host_and_port, http_url, unbracketed
from gnomon_core.errors import GnomonError
from gnomon_core.settings import SCALE_TABLE, TABLE, read_settings, refuse_misspelt
from tests.refusals import refused

HOSTS = st.ip_addresses().map(str) | st.from_regex(r"[a-z][a-z0-9]{0,8}(\.[a-z]{2,5}){0,3}", fullmatch=True)


@given(HOSTS, st.integers(1, 65535), st.sampled_from(["", "/", "/metrics", "/a/b?c=d"]))
def test_a_url_is_read_as_the_host_and_the_port_that_it_was_made_of(host: str, port: int, path: str) -> None:
    url = http_url(host, port, path)
    parts = urlsplit(url)
    assert (parts.scheme, parts.hostname, parts.port) == ("http", host, port)
    assert url.endswith(path)


@pytest.mark.parametrize(
    ("host", "written"),
    [("10.0.0.1", "10.0.0.1"), ("localhost", "localhost"), ("::1", "[::1]"), ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]")],
)
def test_only_ipv6_stands_in_brackets(host: str, written: str) -> None:
    assert (bracketed(host), host_and_port(host, 80)) == (written, f"{written}:80")


@given(HOSTS)
def test_brackets_change_nothing_where_they_are_already_or_are_not_yet(host: str) -> None:
    written = bracketed(host)
    assert (bracketed(written), unbracketed(written), unbracketed(host)) == (written, host, host)


@pytest.mark.parametrize("written", ["[::1", "::1]", "[::1]:80", "10.0.0.1:80", "[10.0.0.1]", "[]", "http://localhost"])
def test_invalid_host_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        unbracketed(written)


@pytest.mark.parametrize(
    ("bound", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "::1"), ("10.0.0.1", "10.0.0.1")]
)
def test_wildcard_address_is_reached_over_loopback(bound: str, reached: str) -> None:
    assert from_this_machine(bound) == reached


@pytest.mark.parametrize(
    ("labels", "annotations", "meant"),
    [
        ({"com.openfaas.scale.mim": "2"}, {}, "com.openfaas.scale.min"),
        ({"com.openfaas.scale.maxx": "2"}, {}, "com.openfaas.scale.max"),
        ({}, {"gnomo/max-batch": "3"}, "gnomon/max-batch"),
        ({}, {"gnomonn/slo-ms": "3"}, "gnomon/slo-ms"),
    ],
)
def test_a_key_that_is_nearly_ours_is_refused_with_the_key_that_was_meant(
    labels: dict[str, str], annotations: dict[str, str], meant: str
) -> None:
    with refused(400, "unknown_setting", hint=f"Did you mean {meant}?"):
        refuse_misspelt(labels, annotations)


@pytest.mark.parametrize(
    "key",
    ["com.openfaas.scale.custom", "com.openfaas.scale.up.window", "com.openfaas.health.http.path", "prometheus.io/scrape",
     "example.com/max-batch", "topic", "x" * 100_000],
)  # fmt: skip
def test_keys_of_other_tools_pass(key: str) -> None:
    refuse_misspelt({key: "x"}, {key: "x"})


def test_every_known_key_passes() -> None:
    refuse_misspelt({one.key: "x" for one in SCALE_TABLE}, {one.key: "x" for one in TABLE})


def test_an_unknown_gnomon_annotation_names_the_nearest_known_one() -> None:
    with pytest.raises(GnomonError) as refused:
        read_settings({}, {"gnomon/autoscalr": "kpa"})
    assert refused.value.hint.startswith("Did you mean gnomon/autoscaler? Known ones: gnomon/model, ")


def test_deterministic_answers_need_batches_of_one() -> None:
    assert read_settings({}, {"gnomon/deterministic": "true", "gnomon/autoscaler": "asyfunc"}).max_batch == 1
    with pytest.raises(GnomonError, match="gnomon/max-batch is 4"):
        read_settings({}, {"gnomon/deterministic": "true", "gnomon/max-batch": "4"})
