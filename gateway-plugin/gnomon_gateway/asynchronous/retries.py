"""When a call is tried again, and how long it waits: OpenFaaS's `com.openfaas.retry.*` annotations, as a value.

By default only the platform's own "not now" is retried: a 429, 502, 503 or 504 that carries `X-OpenFaaS-Internal`. A function's
own answer is final unless its author listed the status.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.units import parse_duration_s
from gnomon_gateway.asynchronous.invocation import FunctionAnswer

PREFIX = "com.openfaas.retry."
OUR_CODES = frozenset({429, 502, 503, 504})
MAX_ATTEMPTS = 1000
MAX_WAIT_S = 86_400.0
# Doubling stops mattering long before: 2⁶⁴ × 1 ms is beyond any allowed wait.
MAX_DOUBLINGS = 64


@dataclass(frozen=True, slots=True)
class RetryRule:
    """How often and how patiently. `attempts` are tries after the first; `codes` None means our own errors only."""

    attempts: int = 10
    codes: frozenset[int] | None = None
    min_wait_s: float = 1.0
    max_wait_s: float = 120.0

    def wait_s(self, answer: FunctionAnswer, tried: int, chance: Random) -> float | None:
        """How long to wait after the `tried`-th try; None if the answer is final.

        The wait doubles from `min_wait_s` to `max_wait_s`, at most half of it taken off by chance, so that calls that failed
        together do not come back together: 1 s, 2 s, 4 s … become 0.5–1 s, 1–2 s, 2–4 s. `Retry-After` is a lower bound.
        """
        retried = answer.status in self.codes if self.codes is not None else answer.is_ours and answer.status in OUR_CODES
        if not retried or tried > self.attempts:
            return None
        wait_s = min(self.max_wait_s, self.min_wait_s * 2.0 ** min(tried - 1, MAX_DOUBLINGS)) * chance.uniform(0.5, 1.0)
        after = answer.header("Retry-After") or ""
        return max(wait_s, min(float(after), self.max_wait_s)) if re.fullmatch(r"\d{1,6}", after) else wait_s


DEFAULT_RULE = RetryRule()


def read_retry_rule(annotations: Mapping[str, str]) -> RetryRule:
    """The rule of a function.

    Raises:
        GnomonError: 400 `invalid_setting`, naming the annotation and what is allowed.

    """
    attempts, codes = annotations.get(f"{PREFIX}attempts"), annotations.get(f"{PREFIX}codes")
    rule = RetryRule(
        attempts=DEFAULT_RULE.attempts if attempts is None else _read_attempts(attempts),
        codes=None if codes is None else _read_codes(codes),
        min_wait_s=_read_wait_s(annotations, "min_wait", DEFAULT_RULE.min_wait_s),
        max_wait_s=_read_wait_s(annotations, "max_wait", DEFAULT_RULE.max_wait_s),
    )
    if rule.max_wait_s < rule.min_wait_s:
        raise _invalid("max_wait", annotations.get(f"{PREFIX}max_wait", ""), f"at least min_wait, {rule.min_wait_s:g}s")
    return rule


def _read_attempts(text: str) -> int:
    if not re.fullmatch(r"\d{1,4}", text.strip()) or int(text) > MAX_ATTEMPTS:
        raise _invalid("attempts", text, f"a whole number from 0 to {MAX_ATTEMPTS}")
    return int(text)


def _read_codes(text: str) -> frozenset[int]:
    codes = [code.strip() for code in text.split(",")]
    if not all(re.fullmatch(r"[2-5]\d\d", code) for code in codes):
        raise _invalid("codes", text, "HTTP statuses with commas between, such as 429,502,503")
    return frozenset(map(int, codes))


def _read_wait_s(annotations: Mapping[str, str], name: str, default_s: float) -> float:
    text = annotations.get(f"{PREFIX}{name}")
    if text is None:
        return default_s
    try:
        wait_s = parse_duration_s(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise _invalid(name, text, "a duration such as 500ms, 10s or 2m, up to 24h")
    return wait_s


def _invalid(name: str, text: str, allowed: str) -> GnomonError:
    return bad_request("invalid_setting", f"annotation {PREFIX}{name} is {text[:100]!r}.", f"It must be {allowed}.")
