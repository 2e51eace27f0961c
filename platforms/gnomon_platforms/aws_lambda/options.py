"""What the operator says once about AWS: who functions run as, and where what is too large for Lambda lies."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gnomon_core.errors import bad_request

DEFAULT_CONCURRENCY = 64
MAX_CONCURRENCY = 1000
"""What an account has in a region unless it asked for more."""
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/.+")
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,19}")


@dataclass(frozen=True, slots=True)
class LambdaOptions:
    """The account's side of the platform.

    `role` is the ARN of the role that functions run as. `bucket` takes what is too large for an Invoke or a package: batches,
    layer programs, weights; `image` is the container image with torch that models run in. Names on Lambda begin with `prefix`.
    `concurrency` bounds the Invokes that are under way at once, and with them threads and connections here.
    """

    role: str
    bucket: str | None = None
    image: str | None = None
    prefix: str = "gnomon"
    concurrency: int = DEFAULT_CONCURRENCY

    def __post_init__(self) -> None:
        if not self.role:
            raise bad_request(
                "role_missing",
                "No role is named that functions run as on Lambda.",
                "Make one from deploy/lambda and name it: --lambda-role arn:aws:iam::ACCOUNT:role/NAME.",
            )
        if not _ROLE.fullmatch(self.role):
            raise bad_request(
                "role_invalid",
                f"{self.role[:200]!r} is not a role's ARN.",
                "It looks like arn:aws:iam::123456789012:role/gnomon.",
            )
        if not _PREFIX.fullmatch(self.prefix):
            raise bad_request(
                "prefix_invalid", f"{self.prefix[:60]!r} cannot begin a name.", "Use up to 20 letters, digits and -."
            )
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise bad_request("concurrency_invalid", f"{self.concurrency} Invokes at once.", f"Use 1 to {MAX_CONCURRENCY}.")
