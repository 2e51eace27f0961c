"""Simulations that only benchmarks run: Markovian arrivals, the clairvoyant policy, and applications of variants on workers.

They use the simulator that `gnomon simulate` uses, and the policies of a running gateway.
"""
