"""`python -m gnomon_coordinator.node`: the process of the DaemonSet on each node. SIGTERM ends it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import ssl
import sys
from pathlib import Path

from gnomon_coordinator.node.agent import KUBELET, Agent, Settings
from gnomon_core.addresses import host_and_port, unbracketed
from gnomon_core.coordination import NODE_PORT, PAIR_PORT
from gnomon_core.errors import GnomonError

MAX_PORT = 65_535


def settings_from(arguments: list[str]) -> Settings:
    """Parse the command line; the process exits with a message where it is not valid."""
    parser = argparse.ArgumentParser("python -m gnomon_coordinator.node", description=__doc__)
    parser.add_argument("--node", default=os.environ.get("NODE_NAME", ""), help="the node's name (NODE_NAME)")
    parser.add_argument("--kubelet", type=Path, default=KUBELET, help="the kubelet's folder, here and on the node")
    parser.add_argument("--pool", type=Path, default=Settings.__dataclass_fields__["pool"].default, help="the pool's socket")
    parser.add_argument("--models", type=Path, default=Path("/models"), help="the model repository in the pool's container")
    parser.add_argument("--host", type=unbracketed, default="127.0.0.1", help="where the platform's port listens")
    parser.add_argument("--port", type=_port, default=NODE_PORT)
    parser.add_argument(
        "--pair-port", type=_port, default=PAIR_PORT, help="port for Bodies on other nodes to reach this node's Shadows"
    )
    parser.add_argument("--token-file", type=Path, help="file of the token that the platform sends")
    parser.add_argument("--tls-certificate", type=Path, help="certificate of the platform's port, with --tls-key")
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--containers", type=int, default=1, help="empty containers in reserve")
    parser.add_argument("--most", type=int, default=4, help="most empty containers in reserve, after bursts")
    parser.add_argument("--stay", type=float, default=0.0, help="most seconds that it keeps running for pods that end with it")
    options = parser.parse_args(arguments)
    if not options.node:
        parser.error("the node has no name: set NODE_NAME from spec.nodeName")
    tls = token = None
    try:
        if options.tls_certificate is not None:
            tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            tls.load_cert_chain(options.tls_certificate, options.tls_key)
    except OSError as error:
        parser.error(f"--tls-certificate {options.tls_certificate}, --tls-key {options.tls_key}: {error}")
    try:
        if options.token_file is not None:
            token = options.token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--token-file {options.token_file}: {error}")
    if token == "":
        parser.error(f"--token-file {options.token_file} is empty: write the coordinators' token into it")
    return Settings(
        options.node,
        options.kubelet,
        options.pool,
        options.models,
        options.host,
        options.port,
        options.pair_port,
        token,
        options.containers,
        options.most,
        tls,
        options.stay,
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{port} is no port, which is at most {MAX_PORT}")
    return port


async def serve(settings: Settings) -> None:
    """Run the agent until SIGTERM, and until the pods that end with this one have gone."""
    stop_requested = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop_requested.set)
    agent = Agent(settings)
    await agent.start()
    sys.stderr.write(f"listening on {host_and_port(settings.host, agent.port)}\n")
    sys.stderr.flush()
    try:
        await stop_requested.wait()
        await agent.stay()
    finally:
        await agent.stop()


def main(arguments: list[str]) -> int:
    """Serve this node."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(serve(settings_from(arguments)))
    except (GnomonError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
