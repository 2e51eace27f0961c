"""The models of a cluster's functions: files and layer blocks from the repository, and their measured profiles.

    gnomon/model ─▶ repository ─▶ files, layer blocks ─▶ profile

Each gateway reads them itself: the leader for its decisions, the owners of functions' queues for batching. Whether a node can
make Shadows does not matter here.
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
    """The models of functions. `folder` is the repository's folder as nodes' pools mount it; `profiles` the measured profiles.

    Profiles of `machine_id` are preferred. A remote repository has no such folder, and nodes then make no Shadows: files are
    fetched to this machine only. `network` is the operator's declaration of the network between nodes. Without it no profile has
    a network cost, and no remote Shadow is made: a measurement on one machine says nothing about a cluster.
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
        """The repository's last answer for each model reference."""

    @property
    def on_nodes(self) -> bool:
        """True if nodes' pools have the models."""
        return self._folder is not None

    def blocks_of(self, spec: FunctionSpec) -> Layers | None:
        """The layer blocks of the function's model; None where it has none, or no model that is here."""
        found = self._found(spec)
        return None if found is None else found[1]

    def profile(self, spec: FunctionSpec) -> ModelProfile | None:
        """The profile of the function's model; None without a profile of exactly these blocks.

        The profile has a network cost only if a network was declared: that of the network and of both ends' software.
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
        """The paths of the files of the function's model, relative to the pool's folder.

        Raises:
            GnomonError: the repository no longer has the model; 409 `no_such_body` if the model is not in that folder.

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
            # No weights are needed here: do not fetch them, as they may be remote.
            entry = self._repository.get_blocks(reference, ())
        except GnomonError as error:
            # While the repository does not answer, its last answer holds.
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
