"""A function that sleeps 120 ms a batch and 15 ms for each of its members: several instances fit on one core."""

import time

BATCH_S, MEMBER_S = 0.12, 0.015


def handle_batch(events, context):
    time.sleep(BATCH_S + MEMBER_S * len(events))
    return [event.body for event in events]
