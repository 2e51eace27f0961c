"""When a batch leaves the queue, and to which idle instance: the scheduling policies. Pure functions of what they are shown."""
