"""Gnomon on Kubernetes while something is broken: a leader is frozen, an API server is away, a process is killed."""
