"""Every command teaches itself, and the table that they are found by is true."""

import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from gnomon_cli.main import ALIASES, TABLE, gnomon

HEAVY = ("urllib3", "yaml", "torch", "numpy", "asyncio", "ssl", "starlette")


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(gnomon)
    for name in TABLE:
        command = gnomon.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", inner) for sub, inner in command.commands.items())
        else:
            yield name, command


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_commands_help_has_a_sentence_options_explained_and_an_example(name: str, command: click.Command) -> None:
    text = CliRunner().invoke(gnomon, [*name.split(), "--help"]).output
    assert command.help
    assert f"gnomon {name}" in text.partition("Examples:")[2]
    unexplained = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
    assert unexplained == []


def test_aliases_lead_somewhere() -> None:
    assert set(ALIASES.values()) <= set(TABLE)


def test_a_misspelt_command_is_a_usage_error_with_the_nearest_one() -> None:
    result = CliRunner().invoke(gnomon, ["deplyo"])
    assert result.exit_code == 2
    assert "Did you mean 'deploy'?" in result.output


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from gnomon_cli.main import gnomon; gnomon.main(['--help'], standalone_mode=False); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout.splitlines()[-1] == "[]"
