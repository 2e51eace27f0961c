"""The gateway and the autoscaler in virtual time, and a load generator for real systems.

`simulation` runs the gateway's dispatcher, the scheduling policies and the autoscaler in virtual time on a simulated platform;
`replay` sends a real system the same arrivals. Both begin with `arrivals`, and `parity` compares their results.
`variant_simulation` does the same for an application of variants, by the batch.
"""
