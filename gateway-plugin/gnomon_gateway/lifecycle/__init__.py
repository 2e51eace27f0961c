"""The lives of functions: deployed, updated while they serve, scaled, removed; and those of their instances.

`manager` answers the API, `deployed` is one function, `instances` carries out decisions, `replacing` lets new instances take the
place of old ones, `control` is what is asked of the autoscaler.
"""
