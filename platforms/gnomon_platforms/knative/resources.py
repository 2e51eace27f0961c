"""Knative's kinds of objects, and the names that mean something on them."""

from __future__ import annotations

from gnomon_platforms.kubernetes.resources import Resource

POD_AUTOSCALERS = Resource("autoscaling.internal.knative.dev/v1alpha1", "podautoscalers", "PodAutoscaler")
SERVERLESS_SERVICES = Resource("networking.internal.knative.dev/v1alpha1", "serverlessservices", "ServerlessService")
INGRESSES = Resource("networking.internal.knative.dev/v1alpha1", "ingresses", "Ingress")
REVISIONS = Resource("serving.knative.dev/v1", "revisions", "Revision")

SYSTEM_NAMESPACE = "knative-serving"
"""The namespace of Knative, and of our autoscaler class and gateway."""
CLASS = "gnomon"
"""Our autoscaler class. Knative's webhook refuses classes that end in .knative.dev."""

AUTOSCALING = "autoscaling.knative.dev/"
CLASS_ANNOTATION = AUTOSCALING + "class"
METRIC_ANNOTATION = AUTOSCALING + "metric"
PROGRESS_DEADLINE_ANNOTATION = "serving.knative.dev/progress-deadline"
REVISION_LABEL = "serving.knative.dev/revision"
ACTIVATOR_LABELS = "app=activator"
GATEWAY_LABELS = "app.kubernetes.io/name=gnomon,app.kubernetes.io/component=knative-gateway"
"""The label selector of our gateway's pods, which report their waiting requests as activators do."""

QUEUE_CONTAINER = "queue-proxy"
"""The container that Knative adds to each pod of a Revision."""

QUEUE_PORT = 8012
"""The port on which queue-proxies and activators take requests by HTTP/1.1."""
GATEWAY_PORT = QUEUE_PORT
"""The port on which our gateway's pods take requests: that of activators, whose place they take in a Revision's Service."""
AUTOSCALING_PORT = 9090
"""The port on which queue-proxy reports the last second's statistics."""
ACTIVATOR_METRICS_PORT = 9090
"""The port of activators' metrics, and of our gateway's pods."""
