"""Gnomon on Kubernetes: under faults and at scale, on a control plane of the benchmark's own, and with models on a real node.

`make cluster-build` compiles what is needed. `leader` and `scale` ask for no root and do not look at KUBECONFIG. `burst` and
`cores` take the cluster that it names, that runs here, or that they boot as root, and what `make images NAMES=gnomon-body` built.
"""
