"""An autoscaler class of our own: Revisions whose PodAutoscaler is of the class `gnomon` are scaled by Gnomon's policies.

    signals    what pods and activators tell of the load ▶ counters, by which any policy can decide
    fleet      the Revisions as the autoscaler's loop observes them; what it decides becomes a number
    planning   that number and what is seen ▶ the ServerlessService's mode, the number of pods, the PodAutoscaler's status: pure
    steps      how each of these is written
    bodies     which pod each instance is, and how large; `shadows` what their nodes do for them
    revision   one task a Revision, between what informers see and what is written

docs/decisions/0032-an-autoscaler-class.md says why, 0042-bodies-and-shadows-on-knative.md what pods are to it.
"""
