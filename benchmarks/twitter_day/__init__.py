"""BATCH's Twitter day, planned by the policy `batch` and judged by what really happened."""
