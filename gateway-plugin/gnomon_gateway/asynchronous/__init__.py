"""Asynchronous invocation: `/async-function/…` is answered 202 once the request is on disk, and executed after that.

    endpoint ──▶ calls (disk) ──▶ queue: lanes per function ──▶ invoke ──▶ retry | result to disk ──▶ callback ──▶ done

Delivery is at least once: a call leaves the disk only when it is finished, so a call that was executing when the gateway was
killed is executed again.
"""
