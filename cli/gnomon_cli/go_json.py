"""JSON as Go's encoding/json writes it, so that our requests equal faas-cli's byte for byte.

Go differs from Python's compact form in two ways that matter here: the keys of a map are sorted, while a struct keeps its order
(the caller's business), and `<`, `>`, `&` and the two line separators are escaped so that the text is safe inside HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_ESCAPED = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


def go_json(document: Any) -> bytes:
    """The document on one line. None of the escaped characters is part of JSON's own syntax, so they only occur in texts."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPED).encode("utf-8", "replace")


def sorted_map(texts: Mapping[str, str]) -> dict[str, str]:
    """A Go map: written in the order of its keys."""
    return dict(sorted(texts.items()))
