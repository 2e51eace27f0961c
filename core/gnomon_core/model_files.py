"""Names of models, of their versions and of the files of a version. Names that match cannot leave a folder."""

from __future__ import annotations

import re

from gnomon_core.errors import bad_request

NAME = re.compile(r"[a-z0-9][a-z0-9._:-]{0,126}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
FILE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SHA256 = re.compile(r"[0-9a-f]{64}")


def check_name(name: str, version: str) -> None:
    """Refuse what cannot name a model.

    Raises:
        GnomonError: 400 `invalid_model_name`.

    """
    if not NAME.fullmatch(name) or not VERSION.fullmatch(version):
        raise bad_request(
            "invalid_model_name",
            f"{name[:150]!r} version {version[:100]!r} cannot name a model.",
            "Use lower-case letters, digits, '.', '_', ':' and '-', beginning with a letter or digit.",
        )
