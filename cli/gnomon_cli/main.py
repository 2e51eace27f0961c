"""`gnomon`: the table of its commands, and the one place where a failure becomes an exit code."""

from __future__ import annotations

import sys

import click

from gnomon_cli.command import Entry, LazyGroup
from gnomon_cli.output import EXIT_FAILURE
from gnomon_core.errors import GnomonError
from gnomon_core.packaging import how_to_install

EXIT_INTERRUPTED = 130

_COMMANDS = "gnomon_cli.commands"
TABLE = {
    "serve": Entry(f"{_COMMANDS}.serve", "serve", "Serve functions on this machine: gateway, autoscaler, instances."),
    "run": Entry(f"{_COMMANDS}.run", "run", "Serve, deploy a stack file and classify a photograph."),
    "up": Entry(f"{_COMMANDS}.up", "up", "Build the functions of a stack file and deploy them."),
    "deploy": Entry(f"{_COMMANDS}.deploy", "deploy", "Deploy the functions of a stack file, or one image."),
    "list": Entry(f"{_COMMANDS}.functions", "list_functions", "List the deployed functions."),
    "describe": Entry(f"{_COMMANDS}.functions", "describe", "Show everything about a function."),
    "invoke": Entry(f"{_COMMANDS}.invoke", "invoke", "Call a function with what standard input or -d holds."),
    "logs": Entry(f"{_COMMANDS}.logs", "logs", "Follow a function's log."),
    "decisions": Entry(f"{_COMMANDS}.functions", "decisions", "Show how a function was scaled, and why."),
    "policies": Entry(f"{_COMMANDS}.functions", "policies", "List the scaling and scheduling policies to choose from."),
    "scale": Entry(f"{_COMMANDS}.functions", "scale", "Set how many instances a function has."),
    "remove": Entry(f"{_COMMANDS}.functions", "remove", "Remove functions."),
    "secret": Entry(f"{_COMMANDS}.secrets", "secret", "Create, list, update and remove secrets."),
    "namespaces": Entry(f"{_COMMANDS}.about", "namespaces", "List the namespaces."),
    "doctor": Entry(f"{_COMMANDS}.doctor", "doctor", "Check what an installation needs, and say what to do."),
    "ready": Entry(f"{_COMMANDS}.about", "ready", "Wait until the gateway or a function is ready."),
    "version": Entry(f"{_COMMANDS}.about", "version", "Show our version and the gateway's."),
    "login": Entry(f"{_COMMANDS}.about", "login", "Keep a login for a gateway."),
    "logout": Entry(f"{_COMMANDS}.about", "logout", "Forget a gateway's login."),
    "models": Entry(f"{_COMMANDS}.models", "models", "Add, list, verify and profile models."),
    "app": Entry(f"{_COMMANDS}.applications", "app", "Applications: queries that name a goal instead of a model."),
    "predict": Entry(f"{_COMMANDS}.planning", "predict", "Predict the latency behind a buffer of requests."),
    "lambda-profile": Entry(f"{_COMMANDS}.lambda_profile", "lambda_profile", "Measure a model on AWS Lambda."),
    "plan": Entry(f"{_COMMANDS}.planning", "plan", "Find the cheapest buffer and instance that meet a latency."),
    "simulate": Entry(f"{_COMMANDS}.simulation", "simulate", "Try a policy on a trace in virtual time."),
    "replay": Entry(f"{_COMMANDS}.simulation", "replay", "Send a trace's requests to a running gateway and measure."),
    "fit-arrivals": Entry(f"{_COMMANDS}.simulation", "fit_arrivals", "Fit an arrival process to recorded requests."),
}
ALIASES = {"ls": "list", "rm": "remove", "delete": "remove", "namespace": "namespaces"}


@click.group(
    cls=LazyGroup,
    table=TABLE,
    aliases=ALIASES,
    examples="""
    gnomon serve                        # on http://127.0.0.1:8080
    gnomon deploy -f stack.yml          # from another terminal
    gnomon invoke classify -d @photo.jpg
    """,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="gnomon", prog_name="gnomon", message="%(prog)s %(version)s")
@click.option("-g", "--gateway", default="", metavar="URL", help="Gateway of the command that follows, as if written after it.")
def gnomon(gateway: str) -> None:
    """Deep-learning models and handlers as functions."""


def main() -> None:
    """Run the command line; the exit code is 0, 1 for a failure, 2 for a command that is written wrongly."""
    try:
        code = gnomon.main(prog_name="gnomon", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except GnomonError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_FAILURE)
    except ModuleNotFoundError as error:
        if (error.name or "gnomon").startswith("gnomon"):
            raise
        message = f"{error.name} is not installed. This command needs more than the client."
        click.echo(f"Error: {message} {how_to_install('all')}", err=True)
        sys.exit(EXIT_FAILURE)
    except (click.Abort, KeyboardInterrupt):
        click.echo("", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output has closed the pipe, as in `gnomon logs f | head`.
        sys.stderr.close()
        sys.exit(EXIT_FAILURE)
    except OSError as error:
        named = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {named}{error.strerror or error}.", err=True)
        sys.exit(EXIT_FAILURE)
    sys.exit(code if isinstance(code, int) else 0)
