"""The buffer's side of Knative: Revisions as functions and their ready pods as instances, behind the gateway's seams.

    revisions  a Revision ▶ whether it is buffered, and by which settings; the `FunctionStore` of all that are; buffer plans
    channel    how a batch travels: as one, or request by request, through the pod's queue-proxy; by which token
    platform   the seam `Platform`: instances come and go as pods do; who scales them is the autoscaler class

docs/decisions/0041-buffering-on-knative.md gives the reasons.
"""
