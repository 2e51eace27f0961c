"""Instances of one handler, as images run them, each at an address of its own: told as JSON, served until killed.

python -m tests.integration.ownership.instances_process HANDLER_FOLDER TOKEN COUNT
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from pathlib import Path

from tests.integration.kubernetes_platform.instance_server import InstanceServer

if __name__ == "__main__":
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    servers = [InstanceServer("127.0.0.1", 0, Path(sys.argv[1]), sys.argv[2]) for _ in range(int(sys.argv[3]))]
    sys.stdout.write(json.dumps([server.address for server in servers]) + "\n")
    sys.stdout.flush()
    signal.pause()
