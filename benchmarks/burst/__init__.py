"""A burst, seen: one model, one shape of load, and what each scaling policy makes of it.

    make demo-burst                     asyfunc, od and k-lv one after the other; each second as a row and in a picture
    python -m benchmarks.burst --model torchvision:inception_v3 --slo-ms 900

`load` is the shape of the burst, `watch` looks at the function ten times a second, `seconds` tells it second by second,
`picture` draws it.
"""
