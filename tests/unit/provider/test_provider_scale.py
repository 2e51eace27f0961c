"""The number of replicas that an operator requests of a foreign provider."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_platforms.provider.api import ProviderOptions
from gnomon_platforms.provider.platform import ProviderPlatform
from tests.refusals import refused

KEY = FunctionKey("fn")
AWAY = GnomonError(503, "provider_unreachable", "It does not answer.")


def platform(scaled: list[int], *, refuses: GnomonError | None = None) -> ProviderPlatform:
    """A platform whose provider takes the number of replicas, or refuses it, and does not list its functions then."""

    def scale(key: FunctionKey, replicas: int) -> None:
        assert key == KEY
        if refuses is not None:
            raise refuses
        scaled.append(replicas)

    def refresh() -> None:
        raise AWAY

    api, catalog = SimpleNamespace(scale=scale), SimpleNamespace(refresh=refresh, unreachable=False)
    return ProviderPlatform(cast("Any", api), cast("Any", catalog), ProviderOptions("http://provider"))


async def test_number_that_the_provider_took_succeeds_although_it_cannot_be_polled_then() -> None:
    scaled: list[int] = []
    await platform(scaled).scale(KEY, 3)
    assert scaled == [3]


@pytest.mark.parametrize("refusal", [AWAY, GnomonError(404, "function_not_found", "There is none.")])
async def test_refusal_of_the_provider_is_reported(refusal: GnomonError) -> None:
    with refused(refusal.status, refusal.code):
        await platform([], refuses=refusal).scale(KEY, 3)
