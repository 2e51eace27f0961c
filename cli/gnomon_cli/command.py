"""The command classes of `gnomon`: options in faas-cli's spelling, suggestions for mistyped names, an example for each command.

`LazyGroup` knows every command's name and one line about it and imports a command's module only when it is run, so that help
comes in a fifth of a second. `Command` takes `--flag=false` as Go programs do, and shows its examples as they are written.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click


def option_group(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one decorator, in their order in the help."""
    return lambda function: functools.reduce(lambda decorated, option: option(decorated), reversed(options), function)


class Command(click.Command):
    """A command with examples, whose switches also take `=true` and `=false`."""

    def __init__(self, *args: Any, examples: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self._examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [part for arg in args for part in self._switch(arg)])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(ctx, formatter)
        write_examples(formatter, self._examples)

    def _switch(self, arg: str) -> list[str]:
        name, equals, value = arg.partition("=")
        if not equals or value.lower() not in {"true", "false"}:
            return [arg]
        for option in self.params:
            if isinstance(option, click.Option) and option.is_flag and name in option.opts:
                return [name] if value.lower() == "true" else option.secondary_opts[:1]
        return [arg]


def write_examples(formatter: click.HelpFormatter, examples: str) -> None:
    """Examples as they are written, a line each."""
    if examples:
        with formatter.section("Examples"):
            for line in examples.strip().splitlines():
                formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")


@dataclass(frozen=True, slots=True)
class Entry:
    """The module and attribute of a command, and its help line."""

    module: str
    attribute: str
    help: str


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed."""

    def __init__(self, *args: Any, table: Mapping[str, Entry], aliases: Mapping[str, str], examples: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._table = table
        self._aliases = aliases
        self._examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self._table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        entry = self._table.get(self._aliases.get(cmd_name, cmd_name))
        if entry is None:
            return None
        command = getattr(importlib.import_module(entry.module), entry.attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{entry.module}.{entry.attribute} is no command")
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self._table and args[0] not in self._aliases:
            near = difflib.get_close_matches(args[0], self._table, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else " `gnomon --help` lists them."
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in self._table.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        write_examples(formatter, self._examples)
