"""Measures what an instance costs on this machine, in a process that the Profiler starts.

    python -m gnomon_runtime.measuring DESCRIPTOR

It is to its measurements what a zygote is to instances: torch is imported once, each order is carried out by a fork, and nothing
parallel runs before it. So what is measured has the threads, the allocator and the page tables that an instance has. Orders and
answers are packets (gnomon_core.packets) on the socket that it inherits:

    in    {"measure": "latency" | "loading" | "memory" | "starts" | "transfer", …}
    out   {"hello": …}, then for each order any number of {"measured": …} and a {"done": true} or a {"failed": …}

`latency` times batches and their blocks, `loading` weights, `memory` what an instance holds besides them, `starts` what lies
before and after loading, `transfer` tensors handed over shared memory. A module each; each says what it is told and what it says.
"""
