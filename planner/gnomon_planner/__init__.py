"""The planner of BATCH (SC'20): from arrivals and service times to the cheapest buffer that meets a latency percentile.

    samples ▶ fit ▶ Map (arrival process) ┐
                                          ├▶ buffer ▶ latency ▶ sweep ▶ optimizer ▶ Plan ▶ validation
    service_time (S_k, its spread)        ┘                       instances, billing

`samples` has the statistics of recorded arrivals, `fit` and `map_families` a Markovian arrival process (`maps`) with the same
statistics. `buffer` and `latency` compute the latency distribution for one batch size and timeout, `sweep` for a grid of them.
`optimizer` searches the grid by cost (`billing`, `instances`). `validation` replays the recorded arrivals through the
plan; `changes` detects that arrivals no longer match. `latency` also has BATCH's own formula, for comparison.

Pure mathematics: no clock, no randomness, no event loop, no I/O, no torch.
"""
