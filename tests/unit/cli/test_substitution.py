"""`${…}` as faas-cli substitutes it; each row was tried against faas-cli 0.18."""

from __future__ import annotations

import pytest

from gnomon_cli.errors import CommandFailed
from gnomon_cli.stack import substitute

ENVIRONMENT = {"A": "hello", "EMPTY": "", "P": "a/b.c/d", "É": "é"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("${A} ${EMPTY} ${NONE}|", "hello  |"),
        ("$A and $ and { } stay", "$A and $ and { } stay"),
        ("$${A} $$A $$$$", "${A} $A $$"),
        (r"\\ \/ \n \${A}", "\\ / \\n \\hello"),
        ("${A:-x}${NONE:-x}${EMPTY:-x}", "helloxx"),
        ("${NONE:=x}${NONE=y}${NONE:?z}${NONE:+w}", "xyzw"),
        ("${NONE:-}", ""),
        ("${NONE:-a ${NONE:-b ${A}} c}", "a b hello c"),
        ("${NONE:-$$}", "$$"),
        ("${#A} ${#É} ${#NONE}", "5 2 0"),
        ("${A^} ${A^^} ${P,,}", "Hello HELLO a/b.c/d"),
        ("${A:1} ${A:1:3} ${A:9} ${A: -2}", "ello ell  hello"),
        ("${A/l/L} ${A//l/L} ${A//l/} ${A/#he/} ${A/#he/HE} ${A/%lo/LO}", "heLlo heLLo heo hello HEllo helLO"),
        ("${A/l/${A}}", "hehellolo"),
        ("${P#*/} ${P##*/} ${P%/*} ${P%%/*} ${A#h?l} ${A##[a-h]*} ${A#x}", "b.c/d d a/b.c a lo  hello"),
        ("é ${É} ✓", "é é ✓"),
    ],
)
def test_forms(text: str, result: str) -> None:
    assert substitute(text, ENVIRONMENT) == result


@pytest.mark.parametrize("text", ["${", "${A", "${}", "${A-x}", "${A:}", "${A#}", "${#A", "${A/b}", "${ A}", "${NONE:-x"])
def test_what_is_no_form_is_told_with_its_line(text: str) -> None:
    with pytest.raises(CommandFailed, match="line 3: "):
        substitute(f"one\ntwo\n{text}", ENVIRONMENT)
