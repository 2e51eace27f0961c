"""Failures of commands: one line on stderr, and an exit code that scripts can rely on.

0 is success, 1 a failure (of the gateway, the network, the stack file), 2 a command that was written wrongly (click's own).
"""

from __future__ import annotations

import click

EXIT_FAILURE = 1
EXIT_WRONG_COMMAND = 2


class CommandFailed(click.ClickException):
    """A failure, with a hint that says what to do."""

    exit_code = EXIT_FAILURE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(f"{message} {hint}".strip())


class WrongCommand(CommandFailed):
    """A command line whose options contradict each other or are not valid."""

    exit_code = EXIT_WRONG_COMMAND
