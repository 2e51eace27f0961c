"""The process whose time is bounded: it holds a layer program and runs batches by orders, a line of JSON for each.

    {"batch": 8, "threads": 1, "runs": 10, "warm": 1}   ▶   {"seconds": [10 times], "core_s": [10 times]}

Each run begins when the one before has ended, as on an instance that is always busy: so the periods of the quota fall anywhere
in a run. It has as many CPUs as threads, as instances of the local platform have, from the one on that it was given.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path

import torch

from gnomon_runtime.engine import load_program
from gnomon_runtime.engine.torch_support import keep_freed_memory


def main() -> None:
    program, weights = (Path(argument) for argument in sys.argv[1:3])
    torch.set_num_threads(1)
    keep_freed_memory()
    loaded = load_program(program, weights)
    print(json.dumps({"ready": True}), flush=True)
    gc.disable()
    cpus = sorted(os.sched_getaffinity(0))
    first = int(sys.argv[3])
    cpus = cpus[first:] + cpus[:first]
    inputs = {}
    for line in sys.stdin:
        order = json.loads(line)
        batch, threads = order["batch"], order["threads"]
        os.sched_setaffinity(0, cpus[:threads])
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if batch not in inputs:
            shape = loaded.signature.inputs[0].shape
            inputs[batch] = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))
        seconds, core_s = [], []
        with torch.inference_mode():
            for number in range(-order["warm"], order["runs"]):
                began_s, began_core_s = time.perf_counter(), time.process_time()
                loaded.executor.run([inputs[batch]])
                if number >= 0:
                    seconds.append(time.perf_counter() - began_s)
                    core_s.append(time.process_time() - began_core_s)
        gc.collect()
        print(json.dumps({"seconds": seconds, "core_s": core_s}), flush=True)


if __name__ == "__main__":
    main()
