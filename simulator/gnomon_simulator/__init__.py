"""The second driver, and the load generator.

`simulation` runs the gateway's dispatcher, the scheduling policies and the autoscaler in virtual time on a simulated platform;
`replay` offers a real system the same arrivals. Both begin with `arrivals`, and `parity` compares what they saw.
"""
