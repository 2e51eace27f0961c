"""Greets whoever is named in the body."""


def handle(event, context):
    name = event.body.decode().strip() or "stranger"
    return {"statusCode": 200, "body": f"Hello, {name}!\n", "headers": {"Content-Type": "text/plain; charset=utf-8"}}
