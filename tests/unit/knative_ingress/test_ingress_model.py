"""What is read of an Ingress, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.model import ingress, seen_ingress
from tests.knative_ingresses import document, made, path, rule, split


def test_an_ingress_is_read_with_its_defaults() -> None:
    one = made("one", rule("A.Example.com", path({**split("s", 0), "servicePort": "http"}), visibility=""))
    (first,) = one.rules
    assert (first.hosts, first.external) == (("a.example.com",), True)
    assert (first.paths[0].prefix, first.paths[0].splits[0].percent) == ("/", 100)
    assert first.paths[0].splits[0].backend.port == "http"


def test_the_older_name_of_the_class_annotation_wins() -> None:
    both = document("one", rule("a.b", path(split("s"))))
    both["metadata"]["annotations"] = {
        "networking.knative.dev/ingress-class": "gnomon",
        "networking.knative.dev/ingress.class": "other",
    }
    assert seen_ingress(both).ingress_class == "other"
    both["metadata"]["annotations"].popitem()
    assert seen_ingress(both).ingress_class == "gnomon"


@pytest.mark.parametrize(
    ("broken", "field"),
    [
        (rule('a.b"\n  bind *:1', path(split("s"))), "rules[0].hosts"),
        (rule("a.*.b", path(split("s"))), "rules[0].hosts"),
        (rule("*", path(split("s"))), "rules[0].hosts"),
        (rule("a.b", path(split("s"), path="v1")), "paths[0].path"),
        (rule("a.b", path(split("s"), path="/" + 2048 * "a")), "paths[0].path"),
        (rule("a.b", path(split("s", 60), split("t", 30))), "sum to 90"),
        (rule("a.b", path(split("s", -20), split("t", 120))), "splits[0].percent"),
        (rule("a.b", path(split("s"), appendHeaders={"Content-Length": "0"})), "appendHeaders"),
        (rule("a.b", path(split("s"), appendHeaders={"X-A": "1\r\nX-B: 2"})), "appendHeaders"),
        (rule("a.b", path(split("s"), appendHeaders={"X-A": "1", "x-a": "2"})), "named twice"),
        (rule("a.b", path(split("s"), headers={"X-%[src]": {"exact": "1"}})), "paths[0].headers"),
        (rule("a.b", path(split("s"), headers={"X-A": {"exact": ""}})), "must have a value"),
        (rule("a.b", path(split("s"), rewriteHost="*.c")), "rewriteHost"),
        (rule("a.b", path({**split("s"), "servicePort": 0})), "servicePort"),
        (rule("a.b", path({**split("s"), "serviceName": "s 10.0.0.1"})), "serviceName"),
        (rule("a.b"), "there is none"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_field(broken: dict[str, Any], field: str) -> None:
    with pytest.raises(GnomonError, match="spec") as raised:
        ingress(document("one", broken))
    assert raised.value.code == "ingress_invalid"
    assert field in raised.value.message
    assert field in seen_ingress(document("one", broken)).problem
