"""Body and Shadow at work: one batch, computed by both at the same time.

orders         the coordinator's orders, and the answers to them
headers        the small messages that Body and Shadow send each other
link           one end of the data path within a node, with its shared-memory buffers
remote_link    the same over TCP, for a Shadow on another node, and how a Body connects to one
partner        one Shadow as its Body sees it, with the timeout of a hand-over
split_model    a batch computed by Body and Shadows; body_side makes, changes and ends pairs
shadow_model   the blocks that a Shadow holds; shadow_side its lifecycle from an empty container on
micro_batches  a Shadow's application in an image; rehearsal warms up a process that waits for its order
"""
