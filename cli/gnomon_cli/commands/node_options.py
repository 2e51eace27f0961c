"""What `gnomon serve` is told of itself and its machine: who reaches it, what it keeps, what it may use, what it serves."""

from __future__ import annotations

from pathlib import Path

import click

from gnomon_cli.command import option_group
from gnomon_cli.options import Bytes, Host, policy_option

MAX_POOL = 64
"""Each holds the memory of a process with torch, some 20 MB of its own."""

listening_options = option_group(
    click.option("--port", type=click.IntRange(0, 65535), default=8080, help="Default 8080; 0 takes a free one."),
    click.option(
        "--host", type=Host(), default="127.0.0.1", help="Address to listen on; others than loopback need --basic-auth."
    ),
    click.option(
        "--basic-auth/--no-basic-auth",
        default=False,
        envvar="basic_auth",
        show_envvar=True,
        help="Ask for a login on control routes.",
    ),
    click.option(
        "--secrets",
        type=click.Path(file_okay=False, path_type=Path),
        default=None,
        envvar="secret_mount_path",
        show_envvar=True,
        help="Folder of basic-auth-user and basic-auth-password; default: in the state folder, made if missing.",
    ),
    click.option(
        "--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help="Host name that a proxy in front is called by."
    ),
    click.option(
        "--max-body",
        "max_body_bytes",
        type=Bytes(1 << 20, 512 << 20),
        default="64Mi",
        metavar="BYTES",
        help="Largest body of a request to a function, from 1Mi to 512Mi; default 64Mi.",
    ),
    click.option("--callback-host", "callback_hosts", multiple=True, metavar="HOST", help="Host that X-Callback-Url may name."),
)
"""Who reaches the gateway, and whom it may answer."""

keeping_options = option_group(
    click.option("--state", default="", metavar="FOLDER", help="What must outlive a restart; default .gnomon here."),
    click.option(
        "--models",
        default="",
        metavar="FOLDER",
        help="Model repository or s3:// address; default in the state folder.",
    ),
)
"""What it keeps, and where."""

machine_options = option_group(
    click.option("--cores", type=click.IntRange(min=1), default=None, help="Cores that instances may use; default all."),
    click.option(
        "--pool",
        type=click.IntRange(0, MAX_POOL),
        default=1,
        help="Empty containers kept warm, from which Shadows are made, more after bursts; default 1.",
    ),
    click.option(
        "--reserved-cores",
        type=click.FloatRange(min=0),
        default=0.0,
        help="Cores held back for Shadows; a Body gets them only where nothing else is free; default 0.",
    ),
    click.option(
        "--images",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        help="Further images and the runtimes that serve them here.",
    ),
)
"""What functions have of this machine, where they run here."""

serving_options = option_group(
    click.option(
        "--platform",
        type=click.Choice(("local", "lambda", "openfaas", "provider", "knative")),
        default="local",
        help="Where functions run: processes of this machine, AWS Lambda, a cluster's pods, or where a foreign provider "
        "of OpenFaaS runs them; or knative, to scale services of the class gnomon there. Default local.",
    ),
    click.option(
        "--namespace",
        "namespaces",
        multiple=True,
        metavar="NAME",
        help="A namespace beside openfaas-fn; on knative, the only one that is looked after, with a Lease of its own.",
    ),
    policy_option,
    click.option("-v", "--verbose", is_flag=True, help="Log every decision and every change."),
)
"""Which functions it serves, where they run, and what is said of it."""
