"""Body and Shadow at work: one batch, computed by both at the same time.

orders       what the coordinator says, and the answers to it
headers      the small messages that Body and Shadow send each other
buffers      the shared memory that their tensors go through
patience     how long a Body waits for a Shadow
partner      one Shadow as its Body sees it
link         the Body's end of all this, split_model what it does with a batch, body_side when it begins and ends
stream       the same messages over TCP, for a Shadow on another node; approach how a Body comes to one, remote_link its end of it
shadow_model the blocks that a Shadow holds, shadow_side its life from an empty container on, micro_batches its work from an image
"""
