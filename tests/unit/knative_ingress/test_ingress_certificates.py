"""A Secret that goes bad takes nobody's certificate away, and stops nobody's changes."""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_platforms.knative.ingress.backends import ServiceFacts, ServicePort, SliceFacts, StillView
from gnomon_platforms.knative.ingress.certificates import Certificates, secret_pem
from gnomon_platforms.knative.ingress.judging import Case, judge
from gnomon_platforms.knative.ingress.model import seen_ingress
from gnomon_platforms.knative.ingress.routing import Shown, routing
from tests.knative_ingresses import document, made, path, rule, split

KEY, SECRET = ("default", "s"), ("default", "tls")
VIEW = StillView(
    {KEY: ServiceFacts(KEY, (ServicePort("http", 80, h2c=False),))}, (SliceFacts(KEY, (("http", 80),), ("10.0.0.1",)),)
)
TLS = [{"hosts": ["a.b"], "secretName": "tls"}]
NO_CERTIFICATE, NO_SECRET = "no certificate with its key is in the Secret default/tls", "there is no Secret default/tls"


async def takes(pems: Collection[str]) -> set[str]:
    """HAProxy, which refuses keys that are too short."""
    return {pem for pem in pems if pem != "weak"}


async def test_the_last_good_certificate_stays_until_there_is_a_better_one_or_its_secret_is_deleted() -> None:
    known, found = Certificates(), []
    for pem in ("", "first", "", "weak", "second", None, "weak", "third"):
        await known.renew({SECRET: pem}, takes)
        found.append((known.pem(SECRET), known.fault(SECRET)))
    assert found == [
        (None, NO_CERTIFICATE),
        ("first", ""),
        ("first", NO_CERTIFICATE),
        ("first", NO_CERTIFICATE),
        ("second", ""),
        (None, NO_SECRET),
        (None, NO_CERTIFICATE),
        ("third", ""),
    ]
    await known.renew({}, takes)
    assert (known.pem(SECRET), known.fault(SECRET)) == (None, "")


def test_a_secret_whose_key_is_another_certificates_has_none(tmp_path: Path) -> None:
    for name in ("a", "b"):
        options = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
        command = ["openssl", "req", "-x509", *options, "-keyout", str(tmp_path / f"{name}.key"), "-out", str(tmp_path / name)]
        subprocess.run(command, check=True, capture_output=True)
    pems = [
        secret_pem(
            {
                "metadata": {"namespace": "default", "name": "tls"},
                "data": {
                    field: base64.b64encode((tmp_path / file).read_bytes()).decode()
                    for field, file in (("tls.crt", "a"), ("tls.key", key))
                },
            }
        )
        for key in ("a.key", "b.key")
    ]
    assert [(key, bool(pem)) for key, pem in pems] == [(SECRET, True), (SECRET, False)]


def test_an_ingress_with_a_certificate_that_went_bad_says_so_and_is_served_with_the_one_before() -> None:
    case = Case("uid-one")
    seen = seen_ingress(document("one", rule("a.b", path(split("s"))), tls=TLS))
    judge(case, seen, replace(VIEW, certificate_faults={SECRET: NO_SECRET}), 0.0)
    assert (case.served, case.trouble and case.trouble.reason) == (None, "CertificateMissing")
    good = replace(VIEW, certificates={SECRET: "first"})
    judge(case, seen, good, 1.0)
    assert (case.served, case.trouble) == (seen.ingress, None)
    worn = replace(good, certificate_faults={SECRET: NO_CERTIFICATE})
    judge(case, seen, worn, 2.0)
    assert case.trouble is not None
    assert (case.served, case.trouble.reason, case.trouble.waits) == (seen.ingress, "CertificateNotRenewed", True)
    assert case.trouble.message.startswith(NO_CERTIFICATE)
    # Its other changes are served meanwhile.
    changed = seen_ingress(document("one", rule("a.b", path(split("s", Which="changed"))), tls=TLS))
    judge(case, changed, worn, 3.0)
    assert (case.served, case.trouble and case.trouble.reason) == (changed.ingress, "CertificateNotRenewed")
    judge(case, changed, replace(VIEW, certificate_faults={SECRET: NO_SECRET}), 4.0)
    assert (case.served, case.trouble and case.trouble.reason) == (changed.ingress, "CertificateMissing")
    judge(case, changed, good, 5.0)
    assert case.trouble is None


@pytest.mark.parametrize(("certificates", "shown"), [({SECRET: "pem"}, (Shown(("a.b",), "pem"),)), ({SECRET: ""}, ()), ({}, ())])
def test_an_empty_certificate_is_never_shown(certificates: dict[tuple[str, str], str], shown: tuple[Shown, ...]) -> None:
    one = made("one", rule("a.b", path(split("s"))), tls=TLS)
    assert routing([one], replace(VIEW, certificates=certificates)).certificates == shown
