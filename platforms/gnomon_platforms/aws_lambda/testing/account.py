"""An AWS account that lasts as long as a test: moto's server with a role and a bucket, and Lambda's API in front of it.

`BuiltFolder` is a handler that was built: a folder, with an environment that has nothing beside it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3

from gnomon_platforms.aws_lambda.resources import LambdaOptions
from gnomon_platforms.aws_lambda.testing.service import LambdaService

IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/gnomon:1"
_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


@dataclass(frozen=True, slots=True)
class Account:
    """A simulated AWS account, and the environment variables by which boto3 finds it."""

    backend: str
    service: LambdaService
    role: str
    bucket: str
    variables: Mapping[str, str]

    def client(self, name: str) -> Any:
        """A client of moto itself, to look at what is there."""
        keys = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}
        return boto3.client(name, endpoint_url=self.backend, **keys)

    def options(self, *, bucket: bool = True, concurrency: int = 8) -> LambdaOptions:
        """The platform's options for this account."""
        return LambdaOptions(self.role, self.bucket if bucket else None, IMAGE, concurrency=concurrency)

    def left(self) -> list[str]:
        """The keys in the bucket."""
        return [item["Key"] for item in self.client("s3").list_objects_v2(Bucket=self.bucket).get("Contents", ())]

    def functions(self) -> list[str]:
        """The functions that there are on Lambda."""
        return [function["FunctionName"] for function in self.client("lambda").list_functions()["Functions"]]


@contextmanager
def backend() -> Iterator[str]:
    """Start moto's server; its address. It takes a second to start, and can serve many accounts."""
    server = importlib.import_module("moto.server").ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@contextmanager
def account(folder: Path, address: str) -> Iterator[Account]:
    """A role and a bucket of one's own on this server, and Lambda in front of it."""
    variables = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": address,
        "AWS_CONFIG_FILE": str(folder / "no-config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(folder / "no-credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with LambdaService(folder / "lambda", address) as service:
        service.environment = {"AWS_ENDPOINT_URL": address}
        variables["AWS_ENDPOINT_URL_LAMBDA"] = service.url
        made = Account(address, service, "", f"gnomon-{uuid.uuid4().hex}", variables)
        role = made.client("iam").create_role(RoleName=f"gnomon-{uuid.uuid4().hex}", AssumeRolePolicyDocument=json.dumps(_TRUST))
        made.client("s3").create_bucket(Bucket=made.bucket)
        yield Account(address, service, role["Role"]["Arn"], made.bucket, variables)


class BuiltFolder:
    """Stands for every image: `resolve` gives itself. `site_packages` is what its requirements brought."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder.parent / "environment" / "bin" / "python"
        self.preload: tuple[str, ...] = ()
        self.content_id = hashlib.sha256((folder / "handler.py").read_bytes()).hexdigest()

    def resolve(self, image: str) -> BuiltFolder:
        """Return this folder, whatever the image."""
        del image
        return self
