"""Scheduling policies: when a batch leaves the queue, and for which idle instance. Pure functions of queue, fleet and time."""
