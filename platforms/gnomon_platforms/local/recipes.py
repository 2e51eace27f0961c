"""Recipes: how the instances of a function are started here, and the user ids that they run as.

A recipe follows from the function's image, the image table, what was built here and the model repository. It names the kind of
instance, the zygote, the files that it may read, and its memory.

Every function has a user id of its own, the same after a restart and never given to another function: instances of two functions
cannot signal each other, read each other's files or look into each other's memory. Only root can give a process another user;
started by anyone else, Gnomon runs every function as that user.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gnomon_core.atomic_files import replace_file
from gnomon_core.coordination import SHADOW_KIND
from gnomon_core.engines import ChosenEngine, can_borrow, engine_of, engine_options
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import InstanceRequest, ModelRepository
from gnomon_core.launch import Launch, Limits, Order, Sandbox
from gnomon_core.packaging import how_to_install
from gnomon_core.profiles import ModelProfile
from gnomon_core.signature import ModelSignature
from gnomon_platforms.common import MODEL_OVERHEAD_BYTES
from gnomon_platforms.images import BuiltHandler, BuiltImages, ImageTable, model_named, no_model_named, process_named
from gnomon_platforms.local.supervision import BARE, TORCH, Environment
from gnomon_platforms.profile_files import ProfileFiles

FIRST_UID = 200_000
LAST_UID = 299_999
_PR_SET_DUMPABLE = 4


class Users:
    """The ids, kept in `users.json` in the state directory. A uid that has been returned is on disk."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "users.json"
        self._uids = _read(self._file)

    def uid(self, owner: str) -> int:
        """The user id of a function, `name.namespace`, or of anything else that has a name."""
        if owner not in self._uids:
            uid = max(self._uids.values(), default=FIRST_UID - 1) + 1
            if uid > LAST_UID:
                raise RuntimeError(
                    f"all user ids from {FIRST_UID} to {LAST_UID} are taken; remove {self._file} while no function runs"
                )
            self._save({**self._uids, owner: uid})
        return self._uids[owner]

    def _save(self, uids: dict[str, int]) -> None:
        replace_file(self._file, json.dumps(uids), durable=True)
        self._uids = uids


def _read(file: Path) -> dict[str, int]:
    """The user ids in a file; none if the file is missing.

    Raises:
        GnomonError: 500 `users_unreadable`: with another function's id, or root's, a function would run as a foreign user.

    """
    try:
        uids = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise _unreadable(file, str(error)) from None
    if not isinstance(uids, dict) or not all(type(uid) is int and FIRST_UID <= uid <= LAST_UID for uid in uids.values()):
        raise _unreadable(file, f"it is not an object of numbers from {FIRST_UID} to {LAST_UID}")
    if len(set(uids.values())) < len(uids):
        raise _unreadable(file, "it gives one number to two functions")
    return uids


def _unreadable(file: Path, reason: str) -> GnomonError:
    return GnomonError(
        500,
        "users_unreadable",
        f"The functions' user ids in {file} cannot be read: {reason}.",
        "Restore the file, or remove it while no gateway and no function runs: functions then get new ids, and lose no data.",
    )


def function_users() -> range:
    """The user ids that functions of this process run under; empty where they can only run as we do."""
    return range(FIRST_UID, LAST_UID + 1) if os.geteuid() == 0 else range(0)


def private_folders() -> tuple[Path, ...]:
    """Folders of our user hidden from functions and builds: keys, credentials, and shell start-up files."""
    home = Path.home().resolve()
    return () if home == Path(home.root) else (home,)


def forbid_inspection() -> None:
    """Close our environment and memory to other processes of the same user. Leaves no core dumps."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


SMALL_INSTANCE_BYTES = 32 * 2**20
RUNTIME_BYTES = 16 * 2**20
"""The runtime's own memory in an instance, 9 MB as measured, comes on top of a function's limit, as a pod's overhead does in
Kubernetes: a function that runs `env` may be limited to 5Mi."""
MAX_PROCESSES = 1024
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe for a function's instances. `content_id` is that of a handler which was built here, else empty."""

    kind: str
    python: str
    preload: tuple[str, ...]
    memory_bytes: int
    readable: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    content_id: str = ""
    signature: ModelSignature | None = None
    engine: ChosenEngine = field(default_factory=ChosenEngine)

    def profile(self, profiles: ProfileFiles) -> ModelProfile | None:
        """The present profile of the model; None without a model or a profile."""
        return None if self.signature is None else profiles.of(self.signature, self.options)

    @property
    def weight_mode(self) -> str:
        """The weight mode of instances: `shared` pages, or a `private` copy for a compiled graph."""
        return "private" if self.engine.files else str(self.options.get("weight_mode", "shared"))

    @property
    def borrows(self) -> bool:
        """Return whether an instance can use another number of cores for each batch."""
        return self.kind == "model" and can_borrow(self.engine.name)

    @property
    def revision(self) -> str:
        """A digest of what an instance is made from. Models and built handlers lie under the digest of their content."""
        made_from = [self.kind, self.python, self.content_id, dict(self.options), dict(self.environment)]
        return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


class Recipes:
    """Resolves functions against the image table, what was built here, and the model repository."""

    def __init__(
        self, state_dir: Path, repository: ModelRepository, built: BuiltImages, images: ImageTable, profiles: ProfileFiles
    ) -> None:
        self._hidden = tuple(str(folder) for folder in (state_dir.resolve(), *private_folders()))
        self._repository = repository
        self._built = built
        self._images = images
        self._profiles = profiles
        # Only root can give a process another user.
        self._users = Users(state_dir) if os.geteuid() == 0 else None

    def find(self, spec: FunctionSpec) -> Recipe:
        """Return the recipe for a function's instances.

        Raises:
            GnomonError: 400 for an unknown image, a model that is missing or that nothing would serve; 404 for an unknown
                model.

        """
        entry = self._images.find(spec.image)
        if entry is not None and entry.kind == "model" and spec.settings.model is not None:
            return self._model(spec, entry.environment)
        built = self._built.resolve(spec.image)
        if built is not None:
            return _handler(spec, built)
        if entry is None:
            raise self._images.unknown(spec.image)
        if entry.kind == "model":
            return self._model(spec, entry.environment)
        no_model_named(spec)
        if entry.kind == "process":
            process_named(spec)
        return Recipe(entry.kind, BARE.python, BARE.preload, _memory(spec, SMALL_INSTANCE_BYTES), environment=entry.environment)

    def _model(self, spec: FunctionSpec, environment: Mapping[str, str]) -> Recipe:
        model = model_named(spec, self._repository)
        if importlib.util.find_spec("torch") is None:
            raise GnomonError(501, "torch_missing", "Models need torch, which is not installed.", how_to_install("body"))
        entry = self._repository.get(model)
        settings = spec.settings
        engine = engine_of(entry.files, settings.engine, settings.precision, settings.accuracy_floor or 0.0)
        # Where pieces of a graph answer otherwise than the whole, there are no blocks that a Shadow could compute.
        layers = {"layers": str(entry.layers)} if entry.layers is not None and engine.has_pieces else {}
        graph = [str(path) for path in engine.files.values()]
        weights_bytes = sum(path.stat().st_size for path in engine.files.values()) or entry.weights.stat().st_size
        options = {
            "program": str(entry.program),
            "weights": str(entry.weights),
            "weight_mode": spec.settings.weight_mode,
            **layers,
            "sha256": dict(entry.sha256),
            **engine_options(engine),
        }
        profile = self._profiles.of(entry.signature, options)
        overhead_bytes = MODEL_OVERHEAD_BYTES if profile is None else profile.overhead_bytes
        return Recipe(
            "model",
            TORCH.python,
            TORCH.preload,
            _memory(spec, weights_bytes + overhead_bytes),
            readable=(str(entry.program), str(entry.weights), *layers.values(), *graph),
            options=options,
            environment=environment,
            signature=entry.signature,
            engine=engine,
        )

    def environment(self, recipe: Recipe, spec: FunctionSpec, secrets: Mapping[str, bytes]) -> Environment:
        """The environment that this function's instances are forked from."""
        if not recipe.content_id:
            return TORCH if recipe.kind == "model" else BARE
        if self._users is None:
            return Environment(f"built {recipe.python}", recipe.python, recipe.preload)
        sandbox = self._sandbox(recipe, spec, secrets)
        digest = hashlib.sha256(f"{recipe.python} {recipe.content_id} {sandbox.to_json()}".encode()).hexdigest()
        return Environment(f"{spec.key} {digest[:16]}", recipe.python, recipe.preload, sandbox)

    def order(self, recipe: Recipe, request: InstanceRequest, instance_id: str, cpus: tuple[int, ...], *, limited: bool) -> Order:
        """The order for a new instance. With `limited` a control group bounds its memory, so that it sets no limit itself."""
        spec = request.spec
        environment = {"PATH": DEFAULT_PATH, "HOME": "/tmp", "HOSTNAME": instance_id, **recipe.environment, **spec.environment}  # noqa: S108 - /tmp is the instance's own
        if spec.env_process:
            environment["fprocess"] = spec.env_process
        launch = Launch(
            kind=recipe.kind,
            function=str(spec.key),
            instance_id=instance_id,
            cores=request.cores,
            max_batch=spec.settings.max_batch,
            concurrency=spec.settings.concurrency,
            environment=environment,
            options=recipe.options,
        )
        entered = self.environment(recipe, spec, request.secrets).sandbox is not None
        secrets = {} if entered else request.secrets
        sandbox = self._sandbox(recipe, spec, secrets, memory_bytes=None if limited else limit_bytes(spec))
        return Order(launch, sandbox, entered=entered, cpus=cpus)

    def _sandbox(
        self, recipe: Recipe, spec: FunctionSpec, secrets: Mapping[str, bytes], *, memory_bytes: int | None = None
    ) -> Sandbox:
        return Sandbox(
            uid=None if self._users is None else self._users.uid(str(spec.key)),
            readable=recipe.readable,
            hidden=self._hidden,
            read_only_root=spec.read_only_root_filesystem,
            secrets=secrets,
            limits=Limits(memory_bytes=memory_bytes, processes=None if self._users is None else MAX_PROCESSES),
        )


def shadow_order(order: Order, body_id: str) -> Order:
    """The order for a Shadow of a Body, from one for another Body like it: the same user, sandbox and files."""
    options = {"weight_mode": "shared", **order.launch.options, "body": body_id}
    return replace(order, launch=replace(order.launch, kind=SHADOW_KIND, options=options))


def joining(order: Order, join: list[str]) -> tuple[Order, list[str]]:
    """The order for an instance that enters these control groups itself where it can, and the files that are left.

    Version 1 lets a process move its only thread at once. To move another process the kernel first waits for every fork and exit
    on the machine, and they for it: 8 ms were measured. A process whose zygote lives in its sandbox has no right to either.
    """
    own = [str(Path(file).with_name("tasks")) for file in join]
    if order.entered or not all(Path(file).exists() for file in own):
        return order, join
    return replace(order, groups=tuple(own)), []


def limit_bytes(spec: FunctionSpec) -> int | None:
    """The bound of an instance's memory; None where the function has no limit."""
    return None if spec.memory_bytes is None else spec.memory_bytes + RUNTIME_BYTES


def _handler(spec: FunctionSpec, built: BuiltHandler) -> Recipe:
    return Recipe(
        "handler",
        str(built.python),
        (*built.preload, "gnomon_runtime.handler"),
        _memory(spec, SMALL_INSTANCE_BYTES),
        readable=(str(built.folder), str(built.python.parent.parent)),
        options={"folder": str(built.folder)},
        content_id=built.content_id,
    )


def _memory(spec: FunctionSpec, estimate_bytes: int) -> int:
    return spec.memory_bytes if spec.memory_bytes is not None else estimate_bytes
