"""Several gateway replicas: each function's queue has one owner among them, and the others forward.

rendezvous.py, holdings.py and planning.py are the rules, without a clock or a socket: who owns what, when an owner may begin, and
when there is a new map. The others carry them out: assigner.py leads, replica.py follows, passage.py forwards a request.
"""
