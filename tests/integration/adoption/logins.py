"""The login that the parts of an installation have in common, as the folder which each of them reads."""

from pathlib import Path

USER, PASSWORD = "admin", "s3cret"


def login_files(folder: Path) -> str:
    """The folder with the two files, which may end in a line break."""
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "basic-auth-user").write_text(USER + "\n")
    (secrets / "basic-auth-password").write_text(PASSWORD + "\n")
    return str(secrets)
