"""The code that runs inside an instance: the layer-program engine, applications, the zygote, the batch channel.

Everything but the engine needs the standard library alone, because a handler's own environment holds its requirements only.
"""
