"""OpenFaaS on Kubernetes: a function is a Deployment and a Service in `openfaas-fn`, an instance is a pod.

    platform   implements `gnomon_core.interfaces.Platform`: commands of the gateway
    fleet      informers, free capacity, and one workload for each function
    workloads  reconciles one function: its instances and their pods
    planning   the next steps for one function: a pure function of observed and desired state
    steps      writes each step to the API server
    store      functions, secrets and namespaces, stored in the cluster itself

docs/decisions/0029-openfaas-on-kubernetes.md says why.
"""
