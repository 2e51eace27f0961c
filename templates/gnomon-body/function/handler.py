"""Answers with the number of words in a text. Put your model here.

Load it at module level: that happens once for each instance, before the first request. An import that this file needs is named
in requirements.txt beside it.
"""


def handle(event, context):
    """Answer one request: a text, bytes, a JSON value, or {"statusCode", "body", "headers"}."""
    return handle_batch([event], context)[0]


def handle_batch(events, context):
    """Answer many requests at once: a list with one answer for each, in order.

    An exception in the list fails the request that it stands for. One that is raised fails them all.
    """
    return [count(event.body) for event in events]


def count(body):
    try:
        return {"words": len(body.decode().split())}
    except UnicodeDecodeError:
        return {"statusCode": 400, "body": {"error": "Send a text in UTF-8."}}
