"""The autoscaler behind the gateway: neither part imports the other, and they are joined here.

`ScalingAdapter` is the gateway's `ScalingControl`. `SavedScalingState` keeps what scaling policies have learned in a file over
restarts, `ScalingStateTransfer` transfers the same from the leader to other replicas:

    leader: windows and policy states of some functions ─ with each report request ─▶ replica keeps the newest ─▶ becomes leader

The leader sends the state of a few functions with each report request, so that a thousand idle functions are sent within fifteen
seconds. A function under load takes about 20 kB and is sent whenever its turn comes.
"""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gnomon_autoscaler.controller import Autoscaler
from gnomon_autoscaler.registry import Policies, require, require_profile, scaling_policy
from gnomon_core.atomic_files import replace_file
from gnomon_core.interfaces import Capabilities
from gnomon_core.policy_registry import described
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import DecisionRecord
from gnomon_core.settings import Settings
from gnomon_gateway.functions.deployments import OtherReplicas


class ScalingAdapter:
    """A `ScalingControl` that an `Autoscaler` answers. `bind` sets it later, because it observes the adapter's users.

    `capabilities` is called when a function names a policy. While another process leads (`other_replicas`), nothing is decided
    here, and `request_decision` is called with functions that need a decision.
    """

    def __init__(
        self,
        policies: Policies,
        capabilities: Callable[[], Capabilities],
        other_replicas: OtherReplicas | None = None,
        request_decision: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._policies = policies
        self._capabilities = capabilities
        self._other_replicas, self._request_decision = other_replicas or OtherReplicas(), request_decision
        self._bound: Autoscaler | None = None

    def bind(self, autoscaler: Autoscaler) -> None:
        """Use this autoscaler from now on."""
        self._bound = autoscaler

    @property
    def _autoscaler(self) -> Autoscaler | None:
        """The autoscaler, if this process leads."""
        return self._bound if self._other_replicas.leads else None

    def check(self, settings: Settings) -> str:
        policy = scaling_policy(settings.autoscaler, settings, self._policies)
        if self._other_replicas.leads:
            require(policy, self._capabilities())
        return policy.default_scheduler

    def check_profile(self, settings: Settings, profile: ModelProfile | None) -> None:
        require_profile(scaling_policy(settings.autoscaler, settings, self._policies), settings, profile)

    def makes_shadows(self, settings: Settings) -> bool:
        """Return whether the function's scaling policy makes Shadows where the platform can."""
        needs: frozenset[str] = getattr(scaling_policy(settings.autoscaler, settings, self._policies), "needs", frozenset())
        return "pair" in needs

    def poke(self, function: str) -> None:
        if (autoscaler := self._autoscaler) is not None:
            autoscaler.poke(function)
        elif not self._other_replicas.leads:
            self._request_decision(function)

    def request(self, function: str, instances: int) -> None:
        if (autoscaler := self._autoscaler) is not None:
            autoscaler.request(function, instances)

    def redeployed(self, function: str) -> None:
        if (autoscaler := self._autoscaler) is not None:
            autoscaler.redeployed(function)

    def served(self, function: str) -> None:
        if (autoscaler := self._autoscaler) is not None:
            autoscaler.served(function)

    def start_backoff_s(self, function: str) -> float:
        autoscaler = self._autoscaler
        return autoscaler.start_backoff_s(function) if autoscaler is not None else 0.0

    def removed(self, function: str) -> None:
        # Followers also hold the state that the leader has sent.
        if self._bound is not None:
            self._bound.removed(function)

    def desired(self, function: str) -> int | None:
        autoscaler = self._autoscaler
        return autoscaler.desired(function) if autoscaler is not None else None

    def decisions(self, function: str, limit: int) -> Sequence[DecisionRecord]:
        autoscaler = self._autoscaler
        return autoscaler.decisions(function, limit) if autoscaler is not None else []

    def policies(self) -> Mapping[str, str]:
        return described(self._policies)


MOST, ENOUGH_BYTES = 20, 8192
"""Functions in one message; fewer once their states take so many bytes. Encoding them takes the event loop 1 to 2 ms."""
_LOG = logging.getLogger("gnomon")


class SavedScalingState:
    """The state of one autoscaler in a file of the state folder, which is replaced atomically."""

    def __init__(self, autoscaler: Autoscaler, folder: Path) -> None:
        self._autoscaler, self._file = autoscaler, folder / "autoscaler.json"

    def restore(self) -> None:
        """Load the saved state, if there is any."""
        try:
            self._autoscaler.import_state(json.loads(self._file.read_bytes()))
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            _LOG.warning("the scaling state %s cannot be read: the autoscaler starts without it", self._file)

    def save(self) -> None:
        """Save the current state, if the disk takes it: the end of the gateway must go on."""
        try:
            replace_file(self._file, json.dumps(self._autoscaler.export_state()), durable=False)
        except OSError as error:
            _LOG.warning("the scaling state cannot be saved in %s: %s", self._file, error)


class ScalingStateTransfer:
    """Sends the autoscaler's state while this replica leads (`leads`), and receives it while another one does."""

    def __init__(self, autoscaler: Autoscaler, leads: Callable[[], bool]) -> None:
        self._autoscaler, self._leads = autoscaler, leads
        self._last: dict[str, str] = {}
        """The function whose state was sent last, by the replica's address."""

    def next(self, address: str) -> Mapping[str, Any] | None:
        """The state to send to the replica at this address next; None if there is none or another replica leads."""
        names = self._autoscaler.known() if self._leads() else []
        if not names:
            return None
        begin = bisect_right(names, self._last.get(address, ""))
        states: dict[str, Any] = {}
        size_bytes = 0
        for name in (names[begin:] + names[:begin])[:MOST]:
            self._last[address] = name
            state = cast("dict[str, Any]", self._autoscaler.export_state([name])["functions"])
            states |= state
            size_bytes += len(json.dumps(state))
            if size_bytes >= ENOUGH_BYTES:
                break
        return {**self._autoscaler.export_state([]), "functions": states}

    def keep(self, addresses: Collection[str]) -> None:
        """Discard the progress of all replicas but those at these addresses."""
        for address in self._last.keys() - addresses:
            del self._last[address]

    def take(self, document: Mapping[str, Any]) -> None:
        """Import a document that the leader has sent.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: the document is not the state of an autoscaler.

        """
        if not self._leads():
            self._autoscaler.import_state(dict(document))
