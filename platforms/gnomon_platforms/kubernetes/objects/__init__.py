"""Functions as Kubernetes objects and back, without asking anybody: every function here is pure.

names          labels, annotations, gates
quantities     cores and memory as Kubernetes writes them
placing        constraints ▶ node selectors, affinity, tolerations
pod_template   FunctionSpec ▶ the pod of an instance
manifests      FunctionSpec ▶ Deployment, Service, Secret
pods           a pod ▶ what an instance's owner must know of it
functions      a Deployment ▶ the function, and its status as OpenFaaS reports it
removal        whom a ReplicaSet would remove next
"""
