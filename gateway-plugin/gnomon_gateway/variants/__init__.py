"""Which variant of a model answers a query, and the states of variants that the choice depends on (INFaaS, section 4.1)."""
