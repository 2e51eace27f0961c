"""Service times of a real model under processor quotas, and how well a few of them tell the others: BATCH, Section VI-B."""
