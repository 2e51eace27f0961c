"""Kubernetes as OpenFaaS's users know it: a function is a Deployment and a Service in `openfaas-fn`, an instance is a pod.

    platform   the seam: what is asked of it, and what it tells
    workloads  one function in the cluster: who waits for a pod, who has one, whose is to go
    planning   what is to be written next: a pure function of what is seen and what is wanted
    steps      how each of these is written
    nodes      what every node has left, and which one an instance gets
    lives      one instance, from the pod that it was given to its end

docs/decisions/0029-openfaas-on-kubernetes.md says why.
"""
