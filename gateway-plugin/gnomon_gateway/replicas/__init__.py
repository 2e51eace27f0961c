"""Several gateway replicas: each function's queue has one owner among them, and the other replicas forward requests to it.

`assignment` holds the rules, without a clock or a socket: which replica owns which function, and from when. `assigner` runs on
the leader, `replica` on every replica, and `forwarding` passes requests on to the owner.
"""
