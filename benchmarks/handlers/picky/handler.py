"""A batch handler that an input can fail: {"do": "raise"} raises, {"do": "exit"} ends the process. All else is answered."""

import json
import os
import time


def handle_batch(events, context):
    asked = [json.loads(event.body) for event in events]
    if any(one.get("do") == "exit" for one in asked):
        os._exit(3)
    time.sleep(0.02)
    if any(one.get("do") == "raise" for one in asked):
        raise ValueError("one of them is poison")
    return [{"token": one["token"]} for one in asked]
