"""Where the page of the ingress class can be, and what is said where it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gnomon_core.errors import GnomonError
from gnomon_platforms.knative.ingress.page import Told, page
from gnomon_platforms.kubernetes.client import Asked

NOTHING = cast("Any", None)
TOLD = Told(Asked(), lambda: True, NOTHING, NOTHING, "")


@pytest.mark.parametrize(
    "bind", ["127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1:http", "8092:", "203.0.113.1:0", "unix@/no/such/folder"]
)
async def test_an_address_that_cannot_be_had_is_told(bind: str) -> None:
    with pytest.raises(GnomonError, match="cannot be had") as refused:
        async with page(bind, TOLD):
            pass
    assert (refused.value.status, refused.value.code) == (400, "ingress_page")


@pytest.mark.parametrize("bind", ["", "127.0.0.1:0", "unix@{}/page.sock"])
async def test_others_can(bind: str, tmp_path: Path) -> None:
    async with page(bind.format(tmp_path), TOLD):
        pass
