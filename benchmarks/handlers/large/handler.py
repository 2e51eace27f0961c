"""Answers 20 MB, whatever it is sent: for clients that read slowly."""

ANSWER = b"x" * 20_000_000


def handle(event, context):
    return {"statusCode": 200, "body": ANSWER}
