"""A burst, seen: one model, one shape of load, and what each scaling policy makes of it.

    make demo-burst                     asyfunc, od and k-lv one after the other; a table, and a picture of each second
    python -m benchmarks.burst --model torchvision:inception_v3 --slo-ms 900

`demo` runs it, `load` is the shape of the burst, `watch` looks at the function ten times a second, `picture` draws and tabulates.
"""
