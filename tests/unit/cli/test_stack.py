"""The meaning of a stack file, and its errors. Each row on `${…}` was tried against faas-cli 0.18."""

import json

import pytest

from gnomon_cli.deployment import Overrides, from_stack
from gnomon_cli.output import CommandFailed
from gnomon_cli.stack import Stack, load_stack, parse_stack, select, substitute

HEAD = "version: 1.0\nprovider:\n  name: openfaas\n"


def parse(functions: str, head: str = HEAD) -> Stack:
    return parse_stack(head + functions, "stack.yml", {})


def test_an_image_without_a_tag_gets_latest() -> None:
    stack = parse("functions:\n  a: {image: host:5000/x}\n  b: {image: x:1}\n  c: {}\n")
    assert [function.image for function in stack.functions] == ["host:5000/x:latest", "x:1", ""]


def test_a_function_that_serves_a_model_needs_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = parse("functions:\n  a: {annotations: {gnomon/model: flowers}}\n  b: {}\n")
    model, other = stack.functions
    monkeypatch.delenv("GNOMON_BODY_IMAGE", raising=False)
    assert json.loads(from_stack(stack, model, Overrides()).body)["image"] == "gnomon/body:latest"
    monkeypatch.setenv("GNOMON_BODY_IMAGE", "registry/body:1")
    assert json.loads(from_stack(stack, model, Overrides()).body)["image"] == "registry/body:1"
    with pytest.raises(CommandFailed, match=r"functions\.b has no image\. Give it .* or a model by the annotation gnomon/model"):
        from_stack(stack, other, Overrides())


def test_functions_keep_the_files_order() -> None:
    assert [function.name for function in parse("functions: {z: {}, a: {}, m: {}}").functions] == ["z", "a", "m"]


def test_a_merged_key_gives_way_to_one_that_is_written() -> None:
    stack = parse("x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nfunctions:\n  f:\n    labels: {<<: [*x, *y], c: 5}\n")
    assert stack.functions[0].labels == {"a": "1", "b": "2", "c": "5"}


@pytest.mark.parametrize(
    ("text", "meant"), [("true", True), ("on", True), ('"yes"', True), ("no", False), ("", False), ("FALSE", False)]
)
def test_switches_as_yaml_ever_wrote_them(text: str, meant: bool) -> None:  # noqa: FBT001 - a table's column
    assert parse(f"functions:\n  f:\n    readonly_root_filesystem: {text}\n").functions[0].readonly_root_filesystem is meant


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version: 2.0\nprovider: {name: openfaas}", "stack.yml:1: version is '2.0'. The only one is 1.0."),
        ("version: 1.0\nprovider:\n  name: faas", "stack.yml:3: provider.name is 'faas'. It must be openfaas"),
        ("version: 1.0", "stack.yml: provider.name is ''. It must be openfaas"),
        (
            f"{HEAD}functions:\n  f:\n    image: x\n    image: y",
            "stack.yml:6: functions.f has 'image' on line 6 and again on line 7.",
        ),
        (f"{HEAD}functions:\n  f:\n    labels: [a]", "stack.yml:6: functions.f.labels must be a mapping"),
        (
            f"{HEAD}functions:\n  f:\n    environment:\n      A: {{b: c}}",
            "stack.yml:7: functions.f.environment.A must be one value",
        ),
        (f"{HEAD}functions:\n  f:\n    secrets: one", "stack.yml:6: functions.f.secrets must be a list"),
        (
            f'{HEAD}functions:\n  f:\n    skip_build: "true"',
            "stack.yml:6: functions.f.skip_build is 'true'. It must be true or false",
        ),
        (f"{HEAD}functions:\n  F_1: {{}}", "stack.yml:5: functions.F_1 is not a function name."),
        (f"{HEAD}functions:\n  f: {{a: b", "stack.yml:5: expected ',' or '}'"),
        (f"{HEAD}# ${{1", "stack.yml: line 4: '${1' is not a substitution."),
        ("", "stack.yml: provider.name is ''."),
    ],
)
def test_an_error_names_the_line_and_says_what_to_write(text: str, message: str) -> None:
    with pytest.raises(CommandFailed) as error:
        parse_stack(text, "stack.yml", {})
    assert error.value.message.startswith(message)


def test_file_nested_beyond_reading_is_refused() -> None:
    with pytest.raises(CommandFailed, match=r"stack\.yml is nested too deeply"):
        parse_stack("[" * 20_000, "stack.yml", {})


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(CommandFailed, match=r"nowhere\.yml: No such file or directory"):
        load_stack("nowhere.yml", {})


@pytest.mark.parametrize(
    ("pattern", "regex", "chosen"),
    [
        ("img-*", "", ["img-a", "img-b"]),
        ("*-b", "", ["img-b"]),
        ("img", "", []),
        ("i*-*a", "", ["img-a"]),
        ("*", "", ["img-a", "img-b", "other"]),
        ("", "^o", ["other"]),
        ("", "g-[ab]", ["img-a", "img-b"]),
        ("i.g-a", "", []),
    ],
)
def test_filter_and_regex(pattern: str, regex: str, chosen: list[str]) -> None:
    stack = parse("functions: {img-a: {}, img-b: {}, other: {}}")
    if chosen:
        assert [function.name for function in select(stack, pattern, regex).functions] == chosen
    else:
        with pytest.raises(CommandFailed, match="It has: img-a, img-b, other"):
            select(stack, pattern, regex)


def test_filter_and_regex_together_are_refused() -> None:
    with pytest.raises(CommandFailed, match="Use one of them"):
        select(parse("functions: {}"), "a", "b")


def test_a_misspelt_key_is_a_warning_with_its_line_and_the_key_that_was_meant() -> None:
    stack = parse("functoins: {}\nfunctions:\n  f:\n    image: x\n    anotations: {a: b}\n    x-own: 1\n  g: {lnag: python}\n")
    assert stack.warnings == (
        "stack.yml:4: functoins is not a key of a stack file and is ignored. Did you mean functions?",
        "stack.yml:8: functions.f.anotations is not a key of a stack file and is ignored. Did you mean annotations?",
        "stack.yml:10: functions.g.lnag is not a key of a stack file and is ignored. Did you mean lang?",
    )


def test_every_key_of_a_faas_cli_stack_file_passes_without_a_warning() -> None:
    keys = "name: f, lang: x, handler: ., image: x, registry: r, skip_build: true, build_secrets: {}, platforms: linux/amd64"
    assert parse(f"functions:\n  f: {{{keys}}}\nconfiguration: {{copy: []}}\nx-shared: {{}}\n").warnings == ()


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
        ("${A%%[a-l]*}|", "|"),  # bash's; faas-cli removes nothing here
    ],
)
def test_forms(text: str, result: str) -> None:
    assert substitute(text, ENVIRONMENT) == result


@pytest.mark.parametrize("text", ["${", "${A", "${}", "${A-x}", "${A:}", "${A#}", "${#A", "${A/b}", "${ A}", "${NONE:-x"])
def test_invalid_substitution_names_its_line(text: str) -> None:
    with pytest.raises(CommandFailed, match="line 3: "):
        substitute(f"one\ntwo\n{text}", ENVIRONMENT)
