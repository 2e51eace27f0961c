"""The names that Knative has given to what an ingress reads, writes and answers (knative.dev/networking)."""

from __future__ import annotations

CLASS_ANNOTATIONS = ("networking.knative.dev/ingress.class", "networking.knative.dev/ingress-class")
"""The older name wins where both are there, as it does in Knative."""
CERTIFICATE_LABEL = "networking.internal.knative.dev/certificate-uid"
SERVICE_LABEL = "kubernetes.io/service-name"

EXTERNAL = "ExternalIP"
REDIRECTED = "Redirected"

HASH_HEADER = "K-Network-Hash"
HASH_OVERRIDE = "override"
TAG_HEADER = "Knative-Serving-Tag"
REVISION_HEADER = "Knative-Serving-Revision"
NAMESPACE_HEADER = "Knative-Serving-Namespace"

H2C = "kubernetes.io/h2c"
H2C_PORT = "http2"
