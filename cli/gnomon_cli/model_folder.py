"""The model repository and the profiles beside it: the options that locate them, and how they are opened."""

from __future__ import annotations

import os
from pathlib import Path

import click

from gnomon_cli.command import option_group
from gnomon_core.interfaces import ModelRepository
from gnomon_profiler.measuring.store import ProfileStore
from gnomon_profiler.places import S3_SCHEME, open_repository
from gnomon_server.options import FETCHED, state_folder

folder_options = option_group(
    click.option(
        "--models",
        "folder",
        default="",
        metavar="FOLDER",
        help="Model repository, a folder or s3://BUCKET/PREFIX; default: models in the state folder.",
    ),
    click.option("--state", default="", metavar="FOLDER", help="State folder of `gnomon serve`; default .gnomon here."),
)
"""`--models` and `--state`, given to the command as `folder` and `state`."""


def model_folder(folder: str, state: str) -> Path:
    """The repository's folder; for a remote repository, the folder of what was fetched from it."""
    if folder.startswith(S3_SCHEME):
        return state_folder(state, os.environ) / FETCHED
    return Path(folder).expanduser() if folder else state_folder(state, os.environ) / "models"


def model_repository(folder: str, state: str) -> ModelRepository:
    """The repository in this folder; one in S3 caches what it fetches in the state folder."""
    return open_repository(folder or str(model_folder("", state)), state_folder(state, os.environ) / FETCHED)


def profile_store(folder: str, state: str) -> ProfileStore:
    """The profiles beside it."""
    return ProfileStore(model_folder(folder, state))
