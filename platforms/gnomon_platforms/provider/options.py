"""What the operator says of a foreign provider."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_IN_FLIGHT = 4
"""As many threads as the server in OpenFaaS's Python templates has."""
POLL_S = 2.0
START_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class ProviderOptions:
    """`url` has no slash at its end. Without `user`, no credentials are sent.

    `in_flight` is how many requests a replica gets at once where its function does not say that, `poll_s` the time between two
    looks at what the provider has. `batch_token` is the secret that Bodies there take batches by.
    """

    url: str
    user: str = ""
    password: str = ""
    in_flight: int = DEFAULT_IN_FLIGHT
    batch_token: str = ""
    poll_s: float = POLL_S
    start_timeout_s: float = START_TIMEOUT_S
