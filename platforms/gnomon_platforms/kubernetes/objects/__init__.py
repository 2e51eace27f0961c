"""Conversion of functions to Kubernetes objects and back. Every function here is pure.

names          labels and annotations
quantities     cores and memory as Kubernetes writes them
placing        constraints ▶ node selectors, affinity, tolerations
pod_template   FunctionSpec ▶ the pod of an instance
manifests      FunctionSpec ▶ Deployment, Service, Secret
probes         the probes of a function's container
pods           a pod ▶ `PodFacts`
functions      a Deployment ▶ the function, and its status as OpenFaaS reports it
"""
