"""Echoes the body, and says so to whoever counts executions before it does: the port of 127.0.0.1 is in LEDGER."""

import os
import socket

ledger = socket.create_connection(("127.0.0.1", int(os.environ["LEDGER"]))) if "LEDGER" in os.environ else None


def handle(event, context):
    if ledger is not None:
        ledger.sendall(event.body + b"\n")
        ledger.recv(1)
    return event.body
