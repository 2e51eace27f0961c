"""Cost of Invokes, by core's dated table. BATCH's Eq. 1: seconds × memory × K1 + invocations × K2.

1,769 MB for 120 ms:  0.120 · 1769/1024 · 1.66667e-5 + 2e-7 = 3.66e-6 dollars, 3.66 for a million such batches

Memory is the one size that a Lambda function has: cores come with it, 1,769 MB for each.

    gnomon/cores 1 ▶ 1,769 MB     2 ▶ 3,538 MB     5 ▶ 8,845 MB     the largest: 10,240 MB, 5.79 cores

A function's memory limit asks for no less than it says, the annotation gnomon/memory-mb for exactly what it says: BATCH's plans
choose memory sizes that are no whole cores.

`LambdaOptions` is the operator's configuration: the role of functions, the bucket for large data, and more.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import FunctionSpec
from gnomon_core.lambda_pricing import LAMBDA_X86, LARGEST_MB, MB_PER_CORE, MB_PER_GB, SMALLEST_MB
from gnomon_core.units import MEGABYTE

FREE_STORAGE_MB = 512


def invoke_usd(billed_s: float, memory_mb: int, storage_mb: int = FREE_STORAGE_MB) -> float:
    """Cost of one Invoke on x86 in US dollars. The first 512 MB of /tmp are free."""
    storage_gb = max(0, storage_mb - FREE_STORAGE_MB) / MB_PER_GB
    return LAMBDA_X86.invoke_usd(billed_s, memory_mb) + billed_s * storage_gb * LAMBDA_X86.usd_per_storage_gb_s


SMALLEST_STORAGE_MB = 512
"""Size of /tmp that Lambda gives every function at no cost, in MB."""


def memory_mb(spec: FunctionSpec, cores: int, requested_mb: int | None = None) -> int:
    """The memory size of an instance in MB: the requested one, else the function's own with so many cores.

    Raises:
        GnomonError: 503 `no_capacity`: Lambda has none that large.

    """
    size_mb = requested_mb or spec.settings.memory_mb
    if size_mb is None:
        limit_mb = math.ceil((spec.memory_bytes or 0) / MEGABYTE)
        by_cores = max(cores, spec.cpu_cores or 0) * MB_PER_CORE
        # 6 cores are what Lambda shows at its largest size, though they are worth 5.79.
        size_mb = max(SMALLEST_MB, limit_mb, LARGEST_MB if cores == math.ceil(LARGEST_MB / MB_PER_CORE) else math.ceil(by_cores))
    if not SMALLEST_MB <= size_mb <= LARGEST_MB:
        raise GnomonError(
            503,
            "no_capacity",
            f"An instance of {size_mb} MB does not fit: Lambda's functions have {SMALLEST_MB} to {LARGEST_MB} MB.",
            f"Ask for at most {LARGEST_MB // MB_PER_CORE} cores, at {MB_PER_CORE} MB each.",
        )
    return size_mb


def cores_of(memory_mb_: int) -> float:
    """The cores that a memory size brings: 885 MB are half of one."""
    return memory_mb_ / MB_PER_CORE


DEFAULT_CONCURRENCY = 64
MAX_CONCURRENCY = 1000
"""AWS's default concurrency of an account in a region."""
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
                "The role that functions run as on Lambda is missing.",
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
                "prefix_invalid",
                f"{self.prefix[:60]!r} cannot be the prefix of Lambda's names.",
                "Use up to 20 letters, digits and -.",
            )
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise bad_request(
                "concurrency_invalid",
                f"A concurrency of {self.concurrency} Invokes is not possible.",
                f"Use 1 to {MAX_CONCURRENCY}.",
            )
