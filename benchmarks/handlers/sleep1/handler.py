"""A handler that waits for something else for a second, as one that calls another service does."""

import time


def handle(event, context):
    time.sleep(1.0)
    return "done"
