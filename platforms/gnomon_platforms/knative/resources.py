"""Knative's kinds of objects, and the names that mean something on them."""

from __future__ import annotations

from gnomon_platforms.kubernetes.resources import Resource

POD_AUTOSCALERS = Resource("autoscaling.internal.knative.dev/v1alpha1", "podautoscalers", "PodAutoscaler")
SERVERLESS_SERVICES = Resource("networking.internal.knative.dev/v1alpha1", "serverlessservices", "ServerlessService")
INGRESSES = Resource("networking.internal.knative.dev/v1alpha1", "ingresses", "Ingress")
REVISIONS = Resource("serving.knative.dev/v1", "revisions", "Revision")

SYSTEM_NAMESPACE = "knative-serving"
"""Where Knative is, and what of ours works beside it."""
CLASS = "gnomon"
"""Of autoscalers. Knative's webhook refuses classes that end in .knative.dev."""

AUTOSCALING = "autoscaling.knative.dev/"
CLASS_ANNOTATION = AUTOSCALING + "class"
METRIC_ANNOTATION = AUTOSCALING + "metric"
PROGRESS_DEADLINE_ANNOTATION = "serving.knative.dev/progress-deadline"
REVISION_LABEL = "serving.knative.dev/revision"
ACTIVATOR_LABELS = "app=activator"
GATEWAY_LABELS = "app.kubernetes.io/name=gnomon,app.kubernetes.io/component=knative-gateway"
"""Of the pods of our gateway, which tells what waits in it as activators do."""

QUEUE_CONTAINER = "queue-proxy"
"""Knative's own in each of a Revision's pods."""

QUEUE_PORT = 8012
"""Where queue-proxies take requests by HTTP/1.1, and activators too."""
GATEWAY_PORT = QUEUE_PORT
"""Where our gateway's pods take requests, so that they can be endpoints of a Revision's Service as activators are."""
AUTOSCALING_PORT = 9090
"""Where queue-proxy tells what it has seen in the last second."""
ACTIVATOR_METRICS_PORT = 9090
"""Also the port of our gateway's pods."""
