"""An autoscaler class for Knative: Revisions whose PodAutoscaler has the class `gnomon` are scaled by Gnomon's policies.

The modules in reading order, along the reconciliation of one PodAutoscaler:

    controller  informers' events and metrics ▶ the reconciler of each Revision, created and closed with its PodAutoscaler
    cluster     the informers, looked up by Revision, and the writer
    revision    the reconciler of one Revision: observe, plan, execute the steps
    planning    observed state ▶ the number of pods, activators in the way or not, the PodAutoscaler's status: pure
    rules       annotations and ConfigMaps ▶ the scaling rules of a Revision
    objects     parsers of each kind of object

Beside it: `instances` are the Bodies and Shadows that policies see and decide on, `metrics` scrapes their load, `shadows` asks
nodes for Shadows, `public_endpoints` leads the Services of batched Revisions to the gateway.

docs/decisions/0032-an-autoscaler-class.md gives the reasons, 0042-bodies-and-shadows-on-knative.md the role of pods.
"""
