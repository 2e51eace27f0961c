"""The models of a cluster's functions as a gateway has them: what is in the repository, and what was measured of it.

    gnomon/model ─▶ repository ─▶ files, layer blocks ─▶ profile

Every gateway reads them for itself: the one that leads decides by them, those that have functions' queues make batches by them.
Whether any node can make Shadows is another matter.
"""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

from gnomon_core.blocks import Layers
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec
from gnomon_core.interfaces import ModelEntry, ModelRepository
from gnomon_core.profiles import ModelProfile, Network
from gnomon_platforms.profile_files import LayerFiles, ProfileFiles


class ServedModels:
    """`folder` is what nodes' pools have of the repository; `profiles` what was measured, on `machine_id` if that has any.

    A repository that is elsewhere has no such folder, and nodes make no Shadows then: what is fetched from it is fetched here.
    `network` is what an operator declares to lie between nodes. Without it no profile prices that, and no Shadow is made on
    another node than its Body's: what the two ends' software takes on one machine says nothing of a cluster.
    """

    def __init__(
        self,
        repository: ModelRepository,
        folder: Path | None,
        profiles: Path | None = None,
        machine_id: str = "",
        *,
        network: Network | None = None,
    ) -> None:
        self._repository = repository
        self._folder = folder
        self._profiles = ProfileFiles(profiles, machine_id)
        self._layers = LayerFiles()
        self._network = network
        self._last: dict[str, tuple[ModelEntry, Layers] | None] = {}
        """By the reference, what the repository has said of it."""

    @property
    def on_nodes(self) -> bool:
        """Whether nodes' pools have the models."""
        return self._folder is not None

    def blocks_of(self, spec: FunctionSpec) -> Layers | None:
        """The layer blocks of the function's model; None where it has none, or no model that is here."""
        found = self._found(spec)
        return None if found is None else found[1]

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """What was measured of the function's model; None without a profile of these very blocks.

        With the network's price only where it was declared: then it is that of what was declared and of both ends' software.
        """
        found = self._found(spec)
        if found is None:
            return None
        entry, layers = found
        profile = self._profiles.find(f"{entry.name}@{entry.version}", entry.sha256.get("program.json", ""), layers)
        if profile is None:
            return None
        return replace(profile, network=None if self._network is None else self._network.over(profile.network))

    def files(self, spec: FunctionSpec) -> dict[str, str]:
        """Where a pool finds the files of the function's model, below its folder.

        Raises:
            GnomonError: the repository has it no more; 409 `no_such_body` where it is not in that folder.

        """
        if self._folder is None:
            raise _not_on_nodes("the repository is elsewhere")
        entry = self._repository.get(spec.settings.model or "")
        paths = {"program": entry.program, "weights": entry.weights, "layers": entry.layers}
        root = self._folder.resolve()
        try:
            return {name: str(path.resolve().relative_to(root)) for name, path in paths.items() if path is not None}
        except ValueError:
            raise _not_on_nodes(f"{entry.program} is not in {root}, which is that folder here") from None

    def _found(self, spec: FunctionSpec) -> tuple[ModelEntry, Layers] | None:
        reference = spec.settings.model
        if reference is None:
            return None
        try:
            # Nothing that is asked for here is in the weights, which may be far away.
            entry = self._repository.get_blocks(reference, ())
        except GnomonError as error:
            # A repository that does not answer takes nothing back.
            return self._last.get(reference) if error.status == HTTPStatus.SERVICE_UNAVAILABLE else None
        layers = None if entry.layers is None else self._layers.of({"layers": str(entry.layers)})
        found = self._last[reference] = None if layers is None else (entry, layers)
        return found


def _not_on_nodes(why: str) -> GnomonError:
    return GnomonError(
        409,
        "no_such_body",
        f"The Body cannot have a Shadow: nodes' pools read models from a folder, and {why}.",
        "Give the gateway the repository as a folder that nodes have as well.",
    )
