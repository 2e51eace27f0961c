"""Where the model repository is, and with it the profiles: the options that say so, and what they lead to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from gnomon_cli.state import state_folder
from gnomon_profiler.measuring.store import ProfileStore
from gnomon_profiler.repository import DirectoryRepository


def folder_options(function: Any) -> Any:
    """`--models` and `--state`, given to the command as `folder` and `state`."""
    for option in (
        click.option(
            "--models", "folder", default="", metavar="FOLDER", help="Model repository; default: models in the state folder."
        ),
        click.option("--state", default="", metavar="FOLDER", help="State folder of `gnomon serve`; default .gnomon here."),
    ):
        function = option(function)
    return function


def model_folder(folder: str, state: str) -> Path:
    """The repository's folder."""
    return Path(folder).expanduser() if folder else state_folder(state, os.environ) / "models"


def model_repository(folder: str, state: str) -> DirectoryRepository:
    """The repository in it."""
    return DirectoryRepository(model_folder(folder, state))


def profile_store(folder: str, state: str) -> ProfileStore:
    """The profiles beside it."""
    return ProfileStore(model_folder(folder, state))
