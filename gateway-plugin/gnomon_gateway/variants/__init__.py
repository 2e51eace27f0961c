"""Selection of the variant that answers a query, and the variants' states that it depends on (INFaaS, section 4.1)."""
