"""What `gnomon serve` is told about an installation of OpenFaaS that is there already."""

from __future__ import annotations

from pathlib import Path

import click

from gnomon_cli.command import option_group
from gnomon_core.errors import GnomonError, bad_request
from gnomon_platforms.provider.options import DEFAULT_IN_FLIGHT, ProviderOptions

MAX_IN_FLIGHT = 10_000


adoption_options = option_group(
    click.option(
        "--behind-gateway",
        "behind",
        is_flag=True,
        help="OpenFaaS's own gateway stands in front, with this one as its functions_provider_url.",
    ),
    click.option(
        "--provider-url",
        default="",
        envvar="functions_provider_url",
        show_envvar=True,
        metavar="URL",
        help="With --platform provider: the provider (faas-netes, faasd, …) that keeps functions and replicas.",
    ),
    click.option(
        "--provider-credentials",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        default=None,
        metavar="FOLDER",
        help="Folder of the provider's basic-auth-user and basic-auth-password; default: no credentials.",
    ),
    click.option(
        "--provider-inflight",
        type=click.IntRange(1, MAX_IN_FLIGHT),
        default=DEFAULT_IN_FLIGHT,
        help="Requests under way at once for each replica, where its function does not say gnomon/max-inflight or "
        f"max_inflight; default {DEFAULT_IN_FLIGHT}.",
    ),
    click.option(
        "--provider-batch-token",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        default=None,
        metavar="FILE",
        help="File with the value of the secret gnomon-batch-token: Bodies there get whole batches.",
    ),
)
"""Whether a stock gateway stands in front of this one, and which provider behind it keeps the functions."""


def read_provider_options(
    *,
    provider_url: str,
    provider_credentials: Path | None,
    provider_inflight: int,
    provider_batch_token: Path | None,
) -> ProviderOptions:
    """The options as a value.

    Raises:
        GnomonError: 400 for an address or a file that is missing.

    """
    url = provider_url.rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise bad_request(
            "provider_missing",
            f"--provider-url is {provider_url[:100]!r}, which is no address of a provider.",
            "Name it as http://HOST:PORT.",
        )
    user = password = ""
    if provider_credentials is not None:
        user, password = (_text(provider_credentials / name) for name in ("basic-auth-user", "basic-auth-password"))
    token = "" if provider_batch_token is None else _text(provider_batch_token)
    return ProviderOptions(url, user, password, in_flight=provider_inflight, batch_token=token)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise GnomonError(400, "credentials_missing", f"{path} cannot be read: {error}.", "Write it there.") from None
    if not text:
        raise bad_request("credentials_missing", f"{path} is empty.", "Write it there.")
    return text
