"""A server of uvicorn that reads a request and answers it: what a connection costs where nothing is done. Run with its port."""

import sys
from typing import Any

import uvicorn

ANSWER = b'{"y": [7]}'
HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


async def application(_scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": ANSWER})


uvicorn.run(
    application, port=int(sys.argv[1]), http="httptools", loop="uvloop", lifespan="off", access_log=False, log_level="warning"
)
