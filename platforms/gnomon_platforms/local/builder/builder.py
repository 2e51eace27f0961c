"""The Builder of the local platform: a handler folder and its requirements become something a zygote can start, without Docker.

    archive ──unpack──▶ contents/<id>/function ─┐
                  └─requirements──▶ environments/<id> ─┴─▶ images.json: image → content

`resolve` is what the platform asks when a function is deployed with an image that was built here. What no function has used for
an hour is removed by `collect`; a file's date says when it was last used.

`ImageIndex` maps an image's name to its content: a JSON file, replaced as a whole, so a SIGKILL leaves the old or the new one.

`Housekeeping` removes built environments that nothing uses any more: a torch among a handler's requirements is gigabytes. In use
is whatever a stored function names or a running instance was made from, and whatever was in use at the check before, so that the
hour begins when the function goes. Checks run when serving begins, whenever a function changes, and from time to time.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from gnomon_core.atomic_files import replace_file
from gnomon_core.errors import GnomonError
from gnomon_core.interfaces import Built
from gnomon_platforms.local.builder.contents import DEFAULT_LIMITS, Content, Contents, Limits, Received
from gnomon_platforms.local.builder.environments import Environments, Log, Runner, settings_for_builds, whole

BUILD_UID = 64_900
TIME_LIMIT_S = 1800.0
"""Time limit of a build in seconds: torch for CUDA alone, 3 GB, takes ten minutes at 5 MB/s."""
UNUSED_S = 3600.0
"""Retention of unused builds: a user may deploy some time after a build, or deploy again after a removal."""


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """A locally built image: the handler's folder, its interpreter, and the modules that its zygote preloads."""

    folder: Path
    python: Path
    preload: tuple[str, ...]
    content_id: str


class EnvironmentBuilder:
    """Builds into `folder`. Builds of one image come one after the other, of different ones at most `concurrency` at once.

    Started as root, requirements are installed by the user `uid`, who sees nothing of the folders in `hidden`, such as the state.
    """

    def __init__(
        self,
        folder: Path,
        *,
        environment: Mapping[str, str] = os.environ,
        uid: int = BUILD_UID,
        hidden: Collection[Path] = (),
        time_limit_s: float = TIME_LIMIT_S,
        limits: Limits = DEFAULT_LIMITS,
        concurrency: int = 2,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        runner = Runner(uid if os.geteuid() == 0 else None, time_limit_s, settings_for_builds(environment), (folder, *hidden))
        self._contents = Contents(folder / "contents", limits)
        self._environments = Environments(folder / "environments", runner)
        self._index = ImageIndex(folder / "images.json")
        self._turns = asyncio.Semaphore(concurrency)
        self._images: dict[str, asyncio.Lock] = {}
        self._gate = asyncio.Lock()
        self._naming = threading.Lock()
        """Held while an image is looked up and noted as used, or judged as unused and forgotten."""
        self._running = 0

    async def build(self, archive: Path, log: Log) -> Built:
        """Build what OpenFaaS's remote-builder protocol sends.

        Raises:
            GnomonError: 422, saying what is wrong; nothing has changed.

        """
        # The gate waits for a collection under way: that must not remove what this build has just received and not named yet.
        async with self._gate:
            self._running += 1
        try:
            received = await whole(self._contents.receive, archive)
            log(f"Received a handler of {received.content.template}, content {received.content.content_id[:12]}.")
            _log_unused_arguments(received, log)
            image = image_name(received.image)
            # One build of an image at a time, else an earlier one could end last and take the name back.
            async with self._images.setdefault(image, asyncio.Lock()), self._turns:
                await self._environments.ensure(received.requirements, log)
                await whole(self._index.put, image, received.content.content_id)
        finally:
            self._running -= 1
        return Built(image, received.content.content_id)

    def resolve(self, image: str) -> BuiltImage | None:
        """Resolve an image name to what was built; None if it was not built here.

        Raises:
            GnomonError: 409 `build_again` where its environment is gone or was made for another Python.

        """
        with self._naming:
            content_id = self._index.get(image_name(image))
            content = self._contents.find(content_id) if content_id else None
            self._use(content)
        if content is None:
            return None
        environment = self._environments.find(content.environment_id)
        if environment is None:
            what = f"The environment of image {image!r} is gone."
            raise GnomonError(409, "build_again", what, "Build it again: gnomon up, or faas-cli up.")
        folder = self._contents.handler_folder(content.content_id)
        return BuiltImage(folder, environment.python, environment.preload, content.content_id)

    async def collect(
        self, images: Collection[str], content_ids: Collection[str] = (), *, unused_s: float = UNUSED_S
    ) -> list[str]:
        """Remove what neither these images nor these contents have needed for this long, and say what.

        Does nothing while something is being built.
        """
        async with self._gate:
            return await whole(self._collect, images, content_ids, unused_s) if not self._running else []

    def _collect(self, images: Collection[str], content_ids: Collection[str], unused_s: float) -> list[str]:
        kept = {image_name(image) for image in images}
        with self._naming:
            named = self._index.images()
            for content_id in {*content_ids, *(content for image, content in named.items() if image in kept)}:
                self._use(self._contents.find(content_id))
            unused = [
                image for image, content in named.items() if image not in kept and self._contents.idle_s(content) >= unused_s
            ]
            self._index.remove(unused)
        needed = {*content_ids, *self._index.images().values()}
        contents = sorted(
            content_id for content_id in self._contents.ids() - needed if self._contents.idle_s(content_id) >= unused_s
        )
        for content_id in contents:
            self._contents.remove(content_id)
        needed = {content.environment_id for content in map(self._contents.find, self._contents.ids()) if content is not None}
        environments = sorted(
            environment_id
            for environment_id in self._environments.ids() - needed
            if self._environments.idle_s(environment_id) >= unused_s
        )
        for environment_id in environments:
            self._environments.remove(environment_id)
        return [*unused, *contents, *environments]

    def _use(self, content: Content | None) -> None:
        """Mark a content and its environment as used now."""
        if content is not None:
            self._contents.use(content.content_id)
            self._environments.use(content.environment_id)


def image_name(image: str) -> str:
    """An image's name with the registry and tag that are meant where there is none, as container tools do."""
    name = image.removeprefix("docker.io/").removeprefix("library/")
    return name if ":" in name.rpartition("/")[2] or "@" in name else f"{name}:latest"


def _log_unused_arguments(received: Received, log: Log) -> None:
    for name in sorted(name for name, value in received.build_args.items() if value):
        log(f"The build argument {name} has no meaning on this platform, which runs one Python and no container.")


VERSION = 1


class ImageIndex:
    """Image names and content ids. A `put` that has returned is on disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._images = _read(path)

    def get(self, image: str) -> str | None:
        return self._images.get(image)

    def images(self) -> Mapping[str, str]:
        """Every image with its content."""
        return dict(self._images)

    def put(self, image: str, content_id: str) -> None:
        """Let an image stand for this content from now on."""
        with self._lock:
            self._replace({**self._images, image: content_id})

    def remove(self, images: Collection[str]) -> None:
        """Forget images."""
        with self._lock:
            self._replace({image: content for image, content in self._images.items() if image not in images})

    def _replace(self, images: dict[str, str]) -> None:
        document = {"version": VERSION, "images": images}
        replace_file(self._path, json.dumps(document, indent=1, sort_keys=True), durable=True)
        self._images = images


def _read(path: Path) -> dict[str, str]:
    """The images in a file; none where there is no file.

    Raises:
        GnomonError: 500 `images_unreadable`.

    """
    try:
        images: dict[str, str] = json.loads(path.read_bytes())["images"]
        if all(isinstance(content, str) for content in images.values()):
            return images
        reason = "an image has an invalid content id"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
    raise GnomonError(
        500,
        "images_unreadable",
        f"The index of built images in {path} cannot be read: {reason}.",
        "Restore the file, or remove it and build your handlers again.",
    )


EVERY_S = 1800.0
SETTLE_S = 1.0
"""Seconds from a change to the collection: `gnomon remove -f stack.yml` changes many functions at once."""

_LOG = logging.getLogger(__name__)


class Housekeeping:
    """Collects for one builder.

    `images` says which images stored functions name, and may block; `contents` what instances run.
    """

    def __init__(
        self,
        builder: EnvironmentBuilder,
        images: Callable[[], Collection[str]],
        contents: Callable[[], Collection[str]],
        *,
        settle_s: float = SETTLE_S,
    ) -> None:
        self._builder = builder
        self._images = images
        self._contents = contents
        self._settle_s = settle_s
        self._before: tuple[frozenset[str], frozenset[str]] = frozenset(), frozenset()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Collect now and again until cancelled."""
        while True:
            self._changed.clear()
            try:
                removed = await self.collect()
            except Exception:  # noqa: BLE001 - a disk that refuses must not end what serves
                _LOG.exception("Unused builds could not be removed")
            else:
                if removed:
                    _LOG.info("removed unused builds: %s", ", ".join(removed))
            try:
                await asyncio.wait_for(self._changed.wait(), EVERY_S)
                await asyncio.sleep(self._settle_s)
            except TimeoutError:
                continue

    async def collect(self) -> list[str]:
        """Remove builds that have been unused for long enough; return what was removed."""
        images, contents = frozenset(await asyncio.to_thread(self._images)), frozenset(self._contents())
        images_before, contents_before = self._before
        self._before = images, contents
        return await self._builder.collect(images | images_before, contents | contents_before)

    def trigger(self) -> None:
        """Collect soon: a function has changed."""
        self._changed.set()
