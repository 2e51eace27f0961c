"""The buffer's side of Knative: Revisions as functions and their ready pods as instances, behind the gateway's seams.

    revisions  a Revision as Knative writes it ▶ whether it is buffered, and by which settings
    store      the seam `FunctionStore`: every Revision that is buffered; Knative keeps them, nothing is kept beside it
    tokens     the secret by which a namespace's pods take whole batches
    channel    how a batch travels: as one, or request by request, through the pod's queue-proxy
    reaching   how a slot comes to its channel, and its pod's process to its cores
    plans      the plan of a Revision's buffer, as its PodAutoscaler's status has it
    platform   the seam `Platform`: instances come and go as pods do; who scales them is the autoscaler class

docs/decisions/0041-buffering-on-knative.md says why.
"""
