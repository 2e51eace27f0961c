"""The names that Knative has given to what an ingress reads, writes and answers (knative.dev/networking)."""

from __future__ import annotations

from gnomon_platforms.kubernetes.resources import Resource

INGRESSES = Resource("networking.internal.knative.dev/v1alpha1", "ingresses", "Ingress")
REVISIONS = Resource("serving.knative.dev/v1", "revisions", "Revision")
ENDPOINT_SLICES = Resource("discovery.k8s.io/v1", "endpointslices", "EndpointSlice")

CLASS = "gnomon"
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
