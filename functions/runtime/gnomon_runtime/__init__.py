"""What runs inside an instance: the layer-program engine, the applications around it, the zygote and the batch channel's end.

Everything but the engine needs the standard library alone, because a handler's own environment holds its requirements only.
"""
