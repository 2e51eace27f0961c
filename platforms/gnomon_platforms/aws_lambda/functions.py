"""Functions on Lambda as they should be: created, updated, published, deleted. Blocking: it runs in a thread.

A deployed function is one function there. Each revision of it and each memory size is a published version, which never changes,
so that instances of an older one go on answering by it until they are drained:

    deploy ▶ create (or update code and configuration) ▶ wait ▶ publish version 1
    another memory size ▶ update configuration ▶ wait ▶ publish version 2          deploy again ▶ update code ▶ publish version 3

A function that a crashed gateway left behind is taken over by its name.

Versions are published once and shared; a function that is no longer used is removed.

Slots of one function that begin together wait for one deployment; deployments of one function follow one another.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from botocore import exceptions

from gnomon_core.background import Background
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_platforms.aws_lambda.client import Clients, aws_errors, error_code, is_role_not_ready
from gnomon_platforms.aws_lambda.recipes import HANDLER, Recipe, zip_package
from gnomon_platforms.aws_lambda.resources import LambdaOptions
from gnomon_platforms.aws_lambda.s3_transfer import S3Transfer

LONGEST_NAME = 64
INLINE_ZIP_BYTES = 45_000_000
"""The largest zip that is sent inside an API call, which takes 50 MB; larger ones go through S3."""
ROLE_RETRY_S = 20.0
"""Seconds for which a new role may be unknown to Lambda."""
ROLE_PAUSE_S = 1.0
READY = {"Delay": 1, "MaxAttempts": 300}
OWNER_TAG = "gnomon:prefix"


class RemoteFunctions:
    """The functions of one gateway, for any thread. One call at a time may be about the same function."""

    def __init__(self, clients: Clients, transfer: S3Transfer, options: LambdaOptions) -> None:
        self._clients = clients
        self._transfer = transfer
        self._options = options

    def name(self, key: FunctionKey, recipe: Recipe) -> str:
        """The function's name on Lambda. A zip function cannot become an image function, so the kind is part of the name."""
        kind = "image" if recipe.image is not None else "zip"
        name = f"{self._options.prefix}-{key.name}-{key.namespace}-{kind}"
        if len(name) <= LONGEST_NAME:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        return f"{name[: LONGEST_NAME - 9]}-{digest}"

    def package(self, recipe: Recipe) -> bytes:
        """The zip of a recipe; empty for the image.

        Raises:
            GnomonError: 422 `package_too_large`.

        """
        return b"" if recipe.image is not None else zip_package(recipe.handler, recipe.environment)

    def publish(self, name: str, recipe: Recipe, package: bytes, memory_mb: int) -> str:
        """Publish a version with this code and memory size, wait until it is active, and return its number.

        Raises:
            GnomonError: 503 `aws_…`.

        """
        for file in recipe.files.values():
            self._transfer.keep_file(file.key(self._options.prefix), file.path, file.sha256)
        with aws_errors(f"deploy {name}"):
            present = self._present(name)
            configuration = self._configuration(name, recipe, memory_mb)
            if present is None:
                self._retry_while_role_is_new(lambda: self._create(configuration, recipe, package))
            else:
                self._update_code(name, present, recipe, package)
                self._retry_while_role_is_new(lambda: self._client.update_function_configuration(**configuration))
            self._settled(name)
            version = str(self._client.publish_version(FunctionName=name)["Version"])
            self._client.get_waiter("function_active_v2").wait(FunctionName=name, Qualifier=version, WaiterConfig=READY)
        return version

    def delete(self, name: str) -> None:
        """Remove a function with all its versions. A missing function is no error.

        Raises:
            GnomonError: 503 `aws_…`.

        """
        with aws_errors(f"delete {name}"):
            try:
                self._client.delete_function(FunctionName=name)
            except exceptions.ClientError as error:
                if error_code(error) != "ResourceNotFoundException":
                    raise

    @property
    def _client(self) -> Any:
        return self._clients.control

    def _present(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._client.get_function(FunctionName=name)
        except exceptions.ClientError as error:
            if error_code(error) == "ResourceNotFoundException":
                return None
            raise
        return found

    def _create(self, configuration: dict[str, Any], recipe: Recipe, package: bytes) -> None:
        kind = {"PackageType": "Image"} if recipe.image is not None else {"PackageType": "Zip"}
        code = self._code(recipe, package)
        self._client.create_function(
            **configuration, **kind, Code=code, Architectures=["x86_64"], Tags={OWNER_TAG: self._options.prefix}
        )
        self._client.get_waiter("function_active_v2").wait(FunctionName=configuration["FunctionName"], WaiterConfig=READY)

    def _update_code(self, name: str, present: dict[str, Any], recipe: Recipe, package: bytes) -> None:
        if recipe.image is not None:
            same = present["Code"].get("ImageUri") == recipe.image
        else:
            same = present["Configuration"].get("CodeSha256") == base64.b64encode(hashlib.sha256(package).digest()).decode()
        if not same:
            self._client.update_function_code(FunctionName=name, **self._code(recipe, package))
            self._settled(name)

    def _code(self, recipe: Recipe, package: bytes) -> dict[str, Any]:
        if recipe.image is not None:
            return {"ImageUri": recipe.image}
        if len(package) <= INLINE_ZIP_BYTES:
            return {"ZipFile": package}
        if self._transfer.bucket is None:
            raise GnomonError(
                503,
                "bucket_missing",
                f"The function's package has {len(package) >> 20} MB, too many for one call.",
                "Name a bucket that it can go through: --lambda-bucket NAME.",
            )
        return {"S3Bucket": self._transfer.bucket, "S3Key": self._transfer.keep_package(package)}

    def _configuration(self, name: str, recipe: Recipe, memory_mb: int) -> dict[str, Any]:
        configuration: dict[str, Any] = {
            "FunctionName": name,
            "Role": self._options.role,
            "Timeout": recipe.timeout_s,
            "MemorySize": memory_mb,
            "EphemeralStorage": {"Size": recipe.storage_mb},
            "Environment": {"Variables": dict(recipe.variables)},
            "Description": f"Gnomon {recipe.revision[:16]}",
        }
        if recipe.image is not None:
            return configuration | {"ImageConfig": {"Command": [HANDLER]}}
        return configuration | {"Runtime": recipe.runtime, "Handler": HANDLER}

    def _settled(self, name: str) -> None:
        self._client.get_waiter("function_updated_v2").wait(FunctionName=name, WaiterConfig=READY)

    def _retry_while_role_is_new(self, act: Callable[[], object]) -> None:
        """Call it; retry for a while if Lambda does not know the role yet."""
        until_s = time.monotonic() + ROLE_RETRY_S
        while True:
            try:
                act()
            except exceptions.ClientError as error:
                if not is_role_not_ready(error) or time.monotonic() > until_s:
                    raise
                time.sleep(ROLE_PAUSE_S)
            else:
                return


LINGER_S = 900.0
"""Seconds that a function without slots is kept: deploying it again takes seconds, keeping it costs nothing."""

_LOG = logging.getLogger(__name__)


class Publisher:
    """The versions of every function. `in_use` says whether a function has slots. On the event loop."""

    def __init__(self, remote: RemoteFunctions, threads: Executor, in_use: Callable[[str], bool]) -> None:
        self._remote = remote
        self._threads = threads
        self._in_use = in_use
        self._versions: dict[str, dict[tuple[str, int], asyncio.Task[str]]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._removals = Background()

    def name(self, key: FunctionKey, recipe: Recipe) -> str:
        """The function's name on Lambda."""
        return self._remote.name(key, recipe)

    async def version(self, key: FunctionKey, recipe: Recipe, memory_mb: int) -> str:
        """The version of this revision and size; publishes it if it is missing.

        Raises:
            GnomonError: 422 or 503: AWS's refusal. The next call tries again.

        """
        name = self.name(key, recipe)
        made = self._versions.setdefault(name, {})
        wanted = (recipe.revision, memory_mb)
        if wanted not in made or _failed(made[wanted]):
            made[wanted] = asyncio.get_running_loop().create_task(self._publish(name, recipe, memory_mb))
        try:
            # Shielded: the deployment is shared, and one cancelled waiter must not cancel it for the others.
            return await asyncio.shield(made[wanted])
        finally:
            self.released(name)

    def released(self, name: str) -> None:
        """Schedule the removal of a function that has lost a slot, unless it is used again by then."""
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
        if name in self._versions and not self._in_use(name):
            self._timers[name] = asyncio.get_running_loop().call_later(LINGER_S, self._begin_removal, name)

    async def stop(self) -> None:
        """Remove every function, after deployments in progress."""
        for timer in self._timers.values():
            timer.cancel()
        publishing = [task for made in self._versions.values() for task in made.values()]
        await asyncio.gather(*publishing, self._removals.settled(), return_exceptions=True)
        await asyncio.gather(*(self._remove(name) for name in list(self._versions)))

    async def _publish(self, name: str, recipe: Recipe, memory_mb: int) -> str:
        loop = asyncio.get_running_loop()
        async with self._locks.setdefault(name, asyncio.Lock()):
            package = await loop.run_in_executor(self._threads, self._remote.package, recipe)
            return await loop.run_in_executor(self._threads, self._remote.publish, name, recipe, package, memory_mb)

    def _begin_removal(self, name: str) -> None:
        self._removals.begin(self._remove_unused(name))

    async def _remove_unused(self, name: str) -> None:
        if not self._in_use(name):
            await self._remove(name)

    async def _remove(self, name: str) -> None:
        """Remove a function and forget its versions; a later request waits for the lock and deploys it again."""
        self._versions.pop(name, None)
        async with self._locks.setdefault(name, asyncio.Lock()):
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, self._remote.delete, name)
            except GnomonError as error:
                _LOG.warning("the unused Lambda function %s could not be deleted: %s", name, error)


def _failed(task: asyncio.Task[str]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
