"""Gnomon on Kubernetes under faults and at scale, on a control plane of the benchmark's own: etcd, apiserver, fake nodes.

`make cluster-build` compiles what is needed. Nothing here asks for root, and nothing here looks at KUBECONFIG.
"""
