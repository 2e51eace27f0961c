"""An autoscaler class for Knative: Revisions whose PodAutoscaler has the class `gnomon` are scaled by Gnomon's policies.

    metrics     scrapes queue-proxies, activators and gateways ▶ the counters from which policies decide
    planning    desired replicas and observed state ▶ mode of the ServerlessService, pods, status of the PodAutoscaler: pure
    steps       writes each of these to the API server
    revision    one task per Revision, between the informers' events and the writes
    controller  starts and ends these tasks

docs/decisions/0032-an-autoscaler-class.md gives the reasons, 0042-bodies-and-shadows-on-knative.md the role of pods.
"""
