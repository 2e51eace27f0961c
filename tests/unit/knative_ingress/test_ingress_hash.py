"""Knative's hash of an Ingress, as its own `ComputeHash` writes it."""

from __future__ import annotations

from typing import Any

from gnomon_platforms.knative.ingress.network_hash import network_hash

SPEC: dict[str, Any] = {
    "httpOption": "Redirected",
    "tls": [{"hosts": ["a.example.com"], "secretName": "s", "secretNamespace": "ns"}],
    "rules": [
        {
            "hosts": ["a.example.com", "b.example.com"],
            "visibility": "ExternalIP",
            "http": {
                "paths": [
                    {
                        "path": "/v1",
                        "rewriteHost": "c.example.com",
                        "headers": {"X-B": {"exact": "1"}, "X-A": {"exact": '<&>\u2028"\\\n'}},
                        "appendHeaders": {"Z": "é", "A": "\b\f\t"},
                        "splits": [
                            {
                                "serviceNamespace": "ns",
                                "serviceName": "x",
                                "servicePort": "http",
                                "percent": 20,
                                "appendHeaders": {"K": "v"},
                            },
                            {"serviceNamespace": "ns", "serviceName": "y", "servicePort": 80, "percent": 80},
                        ],
                    },
                    {"splits": [{"serviceNamespace": "ns", "serviceName": "y", "servicePort": 80}]},
                ]
            },
        },
        {
            "hosts": ["c.ns.svc"],
            "visibility": "ClusterLocal",
            "http": {"paths": [{"splits": [{"serviceNamespace": "ns", "serviceName": "y", "servicePort": 80, "percent": 100}]}]},
        },
    ],
}


def test_it_is_what_knative_computes() -> None:
    """The value is what knative.dev/networking's `ComputeHash` says of this document, compiled with Go 1.26."""
    assert network_hash(SPEC, "ns", "one") == "0d0d79bf66f6751522f1eed9ba01c9da99e733a36e33dd6b1ff7eaf8f48dda95"


def test_each_part_counts() -> None:
    assert len({network_hash(SPEC, "ns", "one"), network_hash(SPEC, "ns", "two"), network_hash({}, "ns", "one")}) == 3
