"""The applications of this gateway: their endpoints, registered models and member functions.

    register_model ▶ checked, on disk ▶ reconcile: a member function for each variant ▶ measured once ▶ queries get it
    gnomon deploy, gnomon/model: app:NAME ▶ on disk ▶ the endpoint NAME, with the members of all models that are registered

`Applications` is the gateway's `FunctionService`: an endpoint is deployed, updated, listed and removed like any other function,
and everything else goes to the `Manager` of functions. Members are functions of the manager that are neither stored nor listed;
after a restart they are deployed again from the registered models. A variant gets queries once its latencies are known, from its
model's profile or measured here; measured ones are stored with the model.

Commands are validated in full before anything changes and durable when they return; members are reconciled in the background.
Failures, such as a model store that hangs, are reported by `describe` and retried with a back-off (`Attempts`). Members without a
failure are reconciled again when their profile changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from itertools import islice

from gnomon_core.applications import (
    POLICY,
    DeclaredApplication,
    MeasuredVariant,
    RegisteredModel,
    architecture_of,
    endpoint_of,
)
from gnomon_core.background import Background
from gnomon_core.clock import utc_now_s
from gnomon_core.engines import PROGRAM
from gnomon_core.errors import GnomonError, bad_request, conflict, not_found
from gnomon_core.functions import NAME, FunctionKey, FunctionSpec
from gnomon_core.interfaces import FunctionStore, MetadataStore, StoredFunction, StoreHealth
from gnomon_core.profiles import ModelProfile
from gnomon_core.scaling import DecisionRecord
from gnomon_core.settings import APPLICATION
from gnomon_core.signature import ModelSignature
from gnomon_core.variant_scaling import WorkerPlan
from gnomon_core.variants import Variant
from gnomon_gateway.applications import catalogue
from gnomon_gateway.applications.application import Application, MakeSelector, Member
from gnomon_gateway.applications.catalogue import Candidate
from gnomon_gateway.applications.measuring import measure, memory_of
from gnomon_gateway.functions.function_runtime import FunctionRuntime
from gnomon_gateway.functions.manager import Manager
from gnomon_gateway.functions.service import FunctionDetail, FunctionService, FunctionStatus, KnownPolicies, unknown_function
from gnomon_gateway.functions.validation import MODEL_NOT_HERE, FunctionInputs
from gnomon_gateway.metrics import FunctionMetrics, PairMetrics
from gnomon_gateway.variants.selection import VariantSelector

NO_ADVICE = WorkerPlan((), (), "")
RETRY_S = 10.0
"""The first back-off in seconds after a failure; it doubles after each attempt, up to `LONGEST_RETRY_S`."""
LONGEST_RETRY_S = 300.0
"""The longest back-off, and the period of reconciling members without a failure: files may be added without an event."""
REGISTER_S = 600.0
"""The longest time that a registration waits for its model: capturing one takes half a minute, a download minutes."""
MOST_DECISIONS = 1000
MOST_MODELS = 100
"""The most registered models of one application."""
_ABOUT_POLICY = "Of applications: instances of the cheapest variants that together satisfy the queries (INFaaS)."
_LOG = logging.getLogger("gnomon.applications")


@dataclass(slots=True)
class MemberFunction:
    """A member of an endpoint: the variant that it runs, and its function. `accuracy` is the one in the model's report."""

    candidate: Candidate
    runtime: FunctionRuntime
    profile: ModelProfile | None
    spec: FunctionSpec
    accuracy: float | None = None


@dataclass(slots=True)
class Attempts:
    """The attempts to make and measure an endpoint's members: when the last one ended, and how many have failed in a row."""

    at_s: float = float("-inf")
    failed: int = 0

    def ended(self, now_s: float, *, failed: bool) -> None:
        self.at_s, self.failed = now_s, self.failed + 1 if failed else 0

    def due(self, now_s: float, *, changed: bool) -> bool:
        """Return whether the next attempt is due. After a change it is due at once, or after `RETRY_S` if the last one failed."""
        if not self.failed:
            return changed or now_s - self.at_s >= LONGEST_RETRY_S
        wait_s = min(LONGEST_RETRY_S, RETRY_S * 2.0 ** min(self.failed - 1, 20))
        return now_s - self.at_s >= (RETRY_S if changed else wait_s)


@dataclass(slots=True)
class Endpoint:
    """A deployed endpoint. `problems` are why a model or a variant is not served, by its name."""

    spec: FunctionSpec
    created_at: float
    application: Application
    members: dict[str, MemberFunction] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    decisions: deque[DecisionRecord] = field(default_factory=partial(deque, maxlen=MOST_DECISIONS))
    """The decisions of the policy for all members, newest first."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)
    attempts: Attempts = field(default_factory=Attempts)
    workers: WorkerPlan = NO_ADVICE
    """The advice on the number of machines, if one policy decides about all members."""

    @property
    def key(self) -> FunctionKey:
        """The application's name and namespace, which the endpoint's own name may differ from."""
        return application_key(self.spec)

    @property
    def together(self) -> bool:
        """Return whether one policy decides about all members together."""
        return catalogue.decided_together(self.spec.settings)


@dataclass(frozen=True, slots=True)
class VariantStatus:
    """A variant of an application and its member. `variant` is None while it is not measured; `problem` says why."""

    candidate: Candidate
    member: FunctionKey
    variant: Variant | None
    replicas: int
    available_replicas: int
    answered: int
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ApplicationStatus:
    """An application: its registered models, its endpoint if it has one, and the variants there."""

    key: FunctionKey
    models: tuple[RegisteredModel, ...]
    endpoint: FunctionKey | None
    variants: tuple[VariantStatus, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)
    workers: WorkerPlan = NO_ADVICE
    progress: Mapping[str, str] = field(default_factory=dict)
    """The last progress report of each model's conversion and profiling."""


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A registered model of an application, and the engines that its endpoint allows."""

    application: FunctionKey
    model: str
    engines: tuple[str, ...]


class Applications:
    """A `FunctionService` over another one, with the applications. `now` gives seconds since 1970."""

    def __init__(
        self,
        functions: FunctionService,
        manager: Manager,
        store: FunctionStore,
        metadata: MetadataStore,
        *,
        make_selector: MakeSelector = VariantSelector,
        now: Callable[[], float] = utc_now_s,
    ) -> None:
        self._functions = functions
        self._manager = manager
        self._store = store
        self._metadata = metadata
        self._make_selector = make_selector
        self._now = now
        self._models: dict[FunctionKey, dict[str, RegisteredModel]] = {}
        self._endpoints: dict[FunctionKey, Endpoint] = {}
        self._changing = asyncio.Lock()
        self._background = Background()
        self._unwatch: Callable[[], None] = lambda: None
        self._progress: dict[tuple[FunctionKey, str], str] = {}
        self.models_changed: Callable[[], None] = lambda: None
        """Called after a model was registered or removed, or an endpoint changed."""

    async def start(self) -> None:
        """Serve the stored endpoints; their members follow in the background."""
        self._unwatch = self._metadata.watch_models(self._follow_soon(asyncio.get_running_loop()))
        for registered in await asyncio.to_thread(self._metadata.registered_models):
            self._models.setdefault(registered.application, {})[registered.model] = registered
        for stored in await asyncio.to_thread(self._store.functions):
            if is_endpoint(stored.spec):
                self._serve(stored.spec, stored.created_at)
        self._background.begin(self._retry())

    async def stop(self) -> None:
        """Stop making and measuring members. The manager stops those that there are."""
        self._unwatch()
        await self._background.end()
        for endpoint in self._endpoints.values():
            self._manager.directory.remove_application(endpoint.spec.key)

    def endpoints(self) -> Iterator[Endpoint]:
        """The endpoints that are served."""
        yield from list(self._endpoints.values())

    def store_health(self) -> StoreHealth:
        """The health of the store of registered models."""
        return self._metadata.health()

    # Conversion and profiling in the background

    def registered(self) -> Sequence[ModelUse]:
        """The registered models of all applications that have an endpoint."""
        return [
            ModelUse(endpoint.key, model, catalogue.engines(endpoint.spec))
            for endpoint in self.endpoints()
            for model in self._models.get(endpoint.key, {})
        ]

    def report_progress(self, application: FunctionKey, model: str, line: str) -> None:
        """Show this line of a model's conversion or profiling in the application's description."""
        self._progress[application, model] = line

    def reconcile(self, application: FunctionKey) -> None:
        """Use the engines and profiles that the application's models have now."""
        endpoint = self._endpoint_of(application)
        if endpoint is not None:
            self._background.begin(self._reconcile(endpoint))

    # Registered models

    async def register(
        self,
        application: FunctionKey,
        reference: str,
        accuracy: float | None,
        variants: Mapping[str, float] | None = None,
    ) -> RegisteredModel:
        """Register a model of the repository for an application, or change its accuracy and that of its variants.

        The first model of an application without an endpoint makes one of the application's name.

        Raises:
            GnomonError: 400 for a name that no application can have, or for variants that the model does not have; 404
                `model_not_found`; 409 `model_registered` for another version of a registered model, `other_tensors` for a model
                of another task, `function_exists` where the endpoint's name is taken; 503 `model_not_here` after `REGISTER_S`.

        """
        check_name(application.name)
        # Before the lock, which the commands of all applications share: the model may have to be captured.
        model, inputs = await self._check_model(application, reference)
        async with self._changing:
            others = self._models.get(application, {})
            existing = others.get(model)
            if existing is None:
                self._check_new(application, model, inputs)
            measured = dict(existing.variants) if existing is not None else {}
            for name, share in (variants or {}).items():
                measured[name] = replace(self._measured(application, model, name), accuracy=share)
            unchanged = existing.accuracy if existing is not None else None
            registered = RegisteredModel(
                application,
                model,
                unchanged if accuracy is None else accuracy,
                existing.registered_at if existing is not None else self._now(),
                measured,
            )
            endpoint = self._endpoint_of(application)
            if endpoint is None:
                await self._deploy(endpoint_of(application))
            await self._put(registered)
            if endpoint is not None:
                self._publish(endpoint)  # an accuracy holds from the answer on
        self._reconcile_soon(application)
        return registered

    async def declare(self, declared: DeclaredApplication) -> None:
        """Let an application be as its file declares it: its endpoint's settings, and no other models.

        Raises:
            GnomonError: as by `deploy`, `update` and `register`.

        """
        key, references = declared.key, declared.models
        await (self.update if key in self._endpoints else self.deploy)(declared.endpoint)
        for model in list(self._models.get(key, {})):
            if model not in references and architecture_of(model) not in references:
                await self.unregister(key, model)
        for reference, accuracy in references.items():
            try:
                await self.register(key, reference, accuracy)
            except GnomonError as error:
                if error.code != "model_registered":
                    raise
                await self.unregister(key, architecture_of(reference))  # another version of it, from an earlier start
                await self.register(key, reference, accuracy)

    async def unregister(self, application: FunctionKey, reference: str) -> None:
        """Remove a model from an application; its members end, and the endpoint stays.

        Raises:
            GnomonError: 404 `application_not_found`, `model_not_registered`.

        """
        async with self._changing:
            models = self._known(application)
            model = next((name for name in models if reference in (name, architecture_of(name))), None)
            if model is None:
                known = ", ".join(models) or "none"
                raise not_found(
                    "model_not_registered",
                    f"{reference[:200]!r} is no model of the application {application.name}.",
                    f"Registered: {known}.",
                )
            await asyncio.to_thread(self._metadata.delete_model, application, model)
            del models[model]
            endpoint = self._endpoint_of(application)
            if endpoint is not None:
                self._publish(endpoint)  # no query gets it from now on
        self._reconcile_soon(application)

    async def forget(self, application: FunctionKey) -> None:
        """Remove an application: all its models, and its endpoint.

        Raises:
            GnomonError: 404 `application_not_found`.

        """
        async with self._changing:
            models = self._known(application)
            for model in list(models):
                await asyncio.to_thread(self._metadata.delete_model, application, model)
                del models[model]
            self._models.pop(application, None)
            endpoint = self._endpoint_of(application)
            if endpoint is not None:
                await self._remove(endpoint)

    def applications(self, namespace: str) -> Sequence[ApplicationStatus]:
        """The applications of a namespace, sorted by name."""
        keys = {key for key, models in self._models.items() if models} | {endpoint.key for endpoint in self._endpoints.values()}
        return [self._status(key) for key in sorted(keys) if key.namespace == namespace]

    def application(self, key: FunctionKey) -> ApplicationStatus:
        """An application with its models and variants.

        Raises:
            GnomonError: 404 `application_not_found`.

        """
        self._known(key)
        return self._status(key)

    def settled(self, key: FunctionKey) -> bool:
        """Return whether queries get variants of the application, and each one of its models' is measured or has failed."""
        endpoint = self._endpoint_of(key)
        if endpoint is None or endpoint.lock.locked():
            return False
        served, problems = endpoint.application.members, endpoint.problems
        models = {member.candidate.model for member in endpoint.members.values()} | problems.keys()
        return bool(served) and self._models.get(key, {}).keys() <= models and endpoint.members.keys() <= {*served, *problems}

    # FunctionService

    async def deploy(self, spec: FunctionSpec) -> None:
        if not is_endpoint(spec):
            _refuse_policy(spec)
            self._refuse_member(spec.key)
            if spec.key in self._endpoints:
                raise conflict("function_exists", f"{spec.key} is deployed already.", "Send a PUT to change it.")
            await self._functions.deploy(spec)
            return
        async with self._changing:
            await self._deploy(spec)

    async def update(self, spec: FunctionSpec) -> None:
        endpoint = self._endpoints.get(spec.key)
        if endpoint is None and not is_endpoint(spec):
            _refuse_policy(spec)
            self._refuse_member(spec.key)
            await self._functions.update(spec)
            return
        if endpoint is None:
            if self._functions.status(spec.key) is None:
                raise unknown_function(spec.key)
            raise _other_kind(spec.key, "no application")
        if not is_endpoint(spec) or application_key(spec) != endpoint.key:
            raise _other_kind(spec.key, f"the application {endpoint.key.name}")
        async with self._changing, endpoint.lock:
            self._require(endpoint)
            self._check_endpoint(spec)
            await asyncio.to_thread(self._store.put_function, StoredFunction(spec, 1, endpoint.created_at))
            endpoint.spec = spec
            endpoint.application.settings = spec.settings
        self._reconcile_soon(endpoint.key)

    async def remove(self, key: FunctionKey) -> None:
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            self._refuse_member(key)
            await self._functions.remove(key)
            return
        async with self._changing:
            self._require(endpoint)
            await self._remove(endpoint)

    async def scale(self, key: FunctionKey, replicas: int) -> None:
        if key in self._endpoints:
            raise conflict(
                "scaled_by_variant",
                f"{key} is the endpoint of an application, which has instances of each variant.",
                f"Scale one of them; `gnomon app describe {self._endpoints[key].key.name}` names them.",
            )
        await self._functions.scale(key, replicas)

    def status(self, key: FunctionKey, *, usage: bool = False) -> FunctionStatus | None:
        endpoint = self._endpoints.get(key)
        if endpoint is None:
            return self._functions.status(key, usage=usage)
        members = self._member_statuses(endpoint)
        return FunctionStatus(
            spec=endpoint.spec,
            created_at=endpoint.created_at,
            replicas=sum(status.replicas for status in members),
            available_replicas=sum(status.available_replicas for status in members),
            invocation_count=endpoint.application.metrics.invocations + sum(status.invocation_count for status in members),
            problem=_problem(endpoint),
        )

    def detail(self, key: FunctionKey) -> FunctionDetail | None:
        endpoint, status = self._endpoints.get(key), self.status(key)
        if endpoint is None or status is None:
            return self._functions.detail(key)
        details = [self._functions.detail(member.spec.key) for member in endpoint.members.values()]
        found = [detail for detail in details if detail is not None]
        return FunctionDetail(
            status=status,
            scheduler=endpoint.spec.settings.scheduler or "",
            instances=tuple(instance for detail in found for instance in detail.instances),
            largest={name: size for detail in found for name, size in detail.largest.items()},
            pairs=PairMetrics(),
        )

    def list(self, namespace: str) -> Sequence[FunctionStatus]:
        own = [status for key in self._endpoints if key.namespace == namespace and (status := self.status(key)) is not None]
        return sorted([*self._functions.list(namespace), *own], key=lambda status: status.spec.key)

    def decisions(self, key: FunctionKey, limit: int) -> Sequence[DecisionRecord] | None:
        endpoint = self._endpoints.get(key)
        return list(islice(endpoint.decisions, limit)) if endpoint is not None else self._functions.decisions(key, limit)

    def policies(self) -> KnownPolicies:
        known = self._functions.policies()
        return KnownPolicies({**known.scaling, POLICY: _ABOUT_POLICY}, known.scheduling)

    # Steps of the commands; `_changing` is held

    async def _deploy(self, spec: FunctionSpec) -> None:
        self._refuse_member(spec.key)
        if spec.key in self._endpoints or self._functions.status(spec.key) is not None:
            raise conflict(
                "function_exists", f"{spec.key} is deployed already.", "Send a PUT to change it, or take another name."
            )
        self._check_endpoint(spec)
        other = self._endpoint_of(application_key(spec))
        if other is not None:
            raise conflict(
                "application_has_endpoint",
                f"The application {other.key.name} has the endpoint {other.spec.key}.",
                "Call that one, or remove it first.",
            )
        created_at = self._now()
        await asyncio.to_thread(self._store.put_function, StoredFunction(spec, 1, created_at))
        self._serve(spec, created_at)

    def _serve(self, spec: FunctionSpec, created_at: float) -> None:
        endpoint = Endpoint(spec, created_at, Application(spec.key, spec.settings, self._make_selector))
        self._endpoints[spec.key] = endpoint
        endpoint.application.measuring = bool(self._models.get(endpoint.key))
        self._manager.directory.add_application(endpoint.application)
        self._reconcile_soon(endpoint.key)

    def _require(self, endpoint: Endpoint) -> None:
        """Refuse to change an endpoint that another command has removed meanwhile.

        Raises:
            GnomonError: 404 `function_not_found`.

        """
        if self._endpoints.get(endpoint.spec.key) is not endpoint:
            raise unknown_function(endpoint.spec.key)

    async def _remove(self, endpoint: Endpoint) -> None:
        async with endpoint.lock:
            await asyncio.to_thread(self._store.delete_function, endpoint.spec.key)
            del self._endpoints[endpoint.spec.key]
            self._manager.directory.remove_application(endpoint.spec.key)
            endpoint.application.use((), None)
            for member in list(endpoint.members.values()):
                await self._manager.remove(member.spec.key)
            endpoint.members.clear()

    async def _put(self, registered: RegisteredModel) -> None:
        await asyncio.to_thread(self._metadata.put_model, registered)
        self._models.setdefault(registered.application, {})[registered.model] = registered

    def _check_endpoint(self, spec: FunctionSpec) -> None:
        """Refuse an endpoint whose members could never be deployed."""
        check_name(application_key(spec).name)
        self._manager.check_policy(catalogue.member_settings(spec))

    async def _check_model(self, application: FunctionKey, reference: str) -> tuple[str, FunctionInputs]:
        """The model as `name@version`, and its inputs.

        Raises:
            GnomonError: 404 `model_not_found`; 400 for a model that cannot be served.

        """
        name = reference.partition("@")[0]
        if reference.startswith(APPLICATION) or not name:
            raise bad_request("invalid_model", f"{reference[:200]!r} is no model.", "Name a model of the repository.")
        endpoint = self._endpoint_of(application)
        spec = endpoint.spec if endpoint is not None else endpoint_of(application)
        try:
            candidate = catalogue.first_candidate(reference, spec)
            inputs = await self._manager.inputs(catalogue.member_spec(spec, candidate), patience_s=REGISTER_S)
        except GnomonError as error:
            if error.code == "model_not_found":
                raise not_found(error.code, error.message, error.hint) from error
            raise
        if inputs.signature is None:
            raise bad_request("invalid_model", f"{reference[:200]!r} has no signature.", "Add it again: gnomon models add")
        if name != reference:
            return reference, inputs
        pinned = f"{name}@{inputs.signature.version}"
        try:
            await self._manager.inputs(catalogue.member_spec(spec, catalogue.first_candidate(pinned, spec)))
        except GnomonError:
            return reference, inputs  # the repository has it under another version than the model says
        return pinned, inputs

    def _check_new(self, application: FunctionKey, model: str, inputs: FunctionInputs) -> None:
        """Refuse a further model that does not fit the application's."""
        others = self._models.get(application, {})
        name = architecture_of(model)
        twin = next((other for other in others if architecture_of(other) == name), None)
        if twin is not None:
            hint = f"Remove it first: gnomon app remove {application.name} {twin}"
            raise conflict("model_registered", f"{twin} is registered for {application.name} already.", hint)
        if len(others) >= MOST_MODELS:
            raise conflict("too_many_models", f"{application.name} has {MOST_MODELS} models.", "Remove one first.")
        endpoint = self._endpoint_of(application)
        for member in endpoint.members.values() if endpoint is not None else ():
            signature = member.runtime.signature
            if signature is not None and inputs.signature is not None and not _one_task(signature, inputs.signature):
                raise conflict(
                    "other_tensors",
                    f"{model} takes and gives other tensors than {member.candidate.model}.",
                    "Models of one application answer the same requests; register this one for an application of its own.",
                )

    def _measured(self, application: FunctionKey, model: str, variant: str) -> MeasuredVariant:
        """The numbers of a variant whose accuracy a client measured."""
        endpoint = self._endpoint_of(application)
        member = endpoint.members.get(variant) if endpoint is not None else None
        numbers = None if endpoint is None or member is None else self._numbers(endpoint, member)
        if numbers is None or member is None or member.candidate.model != model:
            raise bad_request(
                "unknown_variant",
                f"{variant[:200]!r} is no measured variant of {model}.",
                f"List them with: gnomon app describe {application.name}",
            )
        return numbers

    def _refuse_member(self, key: FunctionKey) -> None:
        if key in self._manager.members:
            owner = next(
                (endpoint for endpoint in self._endpoints.values() if any(m.spec.key == key for m in endpoint.members.values())),
                None,
            )
            name = owner.key.name if owner is not None else key.name.partition("--")[0]
            raise conflict(
                "member_of_application", f"{key} is a variant of the application {name}.", "Change the application instead."
            )

    def _known(self, application: FunctionKey) -> dict[str, RegisteredModel]:
        models = self._models.get(application)
        if not models and self._endpoint_of(application) is None:
            raise not_found(
                "application_not_found",
                f"There is no application {application.name[:200]!r}.",
                "List them with `gnomon app list`, or register a model: gnomon app add",
            )
        return models if models is not None else self._models.setdefault(application, {})

    def _endpoint_of(self, application: FunctionKey) -> Endpoint | None:
        return next((endpoint for endpoint in self._endpoints.values() if endpoint.key == application), None)

    # Changes by other gateways

    def _follow_soon(self, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
        """A callback for the store's thread."""

        def changed() -> None:
            # The store may report a change after the loop has ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: self._background.begin(self._follow()))

        return changed

    async def _follow(self) -> None:
        """Serve the models that the store has now."""
        async with self._changing:
            found: dict[FunctionKey, dict[str, RegisteredModel]] = {}
            for registered in await asyncio.to_thread(self._metadata.registered_models):
                found.setdefault(registered.application, {})[registered.model] = registered
            changed = {key for key in found.keys() | self._models.keys() if found.get(key, {}) != self._models.get(key, {})}
            self._models = found
            for key in changed:
                endpoint = self._endpoint_of(key)
                if endpoint is not None:
                    self._publish(endpoint)
        for key in changed:
            self._reconcile_soon(key)

    # Members

    def _reconcile_soon(self, application: FunctionKey) -> None:
        self.models_changed()
        self.reconcile(application)

    async def _retry(self) -> None:
        """Try again what could not be made or measured, and use profiles that were measured meanwhile."""
        while True:
            await asyncio.sleep(RETRY_S)
            for endpoint in self.endpoints():
                # Runtimes have the profiles that the manager of functions read last.
                changed = any(member.runtime.published_profile != member.profile for member in endpoint.members.values())
                if endpoint.attempts.due(asyncio.get_running_loop().time(), changed=changed):
                    await self._reconcile(endpoint)

    async def _reconcile(self, endpoint: Endpoint) -> None:
        """Make the members that are missing, end those without a model, and measure what is not measured."""
        async with endpoint.lock:
            if self._endpoints.get(endpoint.spec.key) is not endpoint:
                return
            needed: set[str] = set()
            for registered in list(self._models.get(endpoint.key, {}).values()):
                try:
                    needed |= await self._make_members(endpoint, registered)
                    endpoint.problems.pop(registered.model, None)
                except GnomonError as error:
                    # A model that is on its way is looked for again without anyone's doing: its hint is for deployments.
                    self._report(endpoint, registered.model, error.message if error.code == MODEL_NOT_HERE else str(error))
                    needed |= {name for name, member in endpoint.members.items() if member.candidate.model == registered.model}
            for name in endpoint.members.keys() - needed:
                member = endpoint.members.pop(name)
                endpoint.application.metrics.add(member.runtime.metrics)
                self._publish(endpoint)
                await self._manager.remove(member.spec.key)
            for name in endpoint.problems.keys() - endpoint.members.keys() - self._models.get(endpoint.key, {}).keys():
                del endpoint.problems[name]
            self._publish(endpoint)
        await self._measure_all(endpoint)
        endpoint.attempts.ended(asyncio.get_running_loop().time(), failed=bool(endpoint.problems))

    async def _make_members(self, endpoint: Endpoint, registered: RegisteredModel) -> set[str]:
        """Make the members of a registered model that are missing or changed. Returns the ids of its variants."""
        spec, variant_ids = endpoint.spec, set[str]()
        for engine in catalogue.engines(spec):
            inputs = await self._manager.inputs(
                catalogue.member_spec(spec, catalogue.first_candidate(registered.model, spec, engine))
            )
            if (inputs.engine.name if inputs.engine is not None else PROGRAM) != engine:
                continue  # the platform runs the layer program in its place, which is another variant
            for candidate in catalogue.candidates(registered.model, engine, spec, inputs.profile):
                await self._make_member(endpoint, candidate, inputs.profile)
                endpoint.members[candidate.id].accuracy = inputs.engine.accuracy if inputs.engine is not None else None
                variant_ids.add(candidate.id)
        return variant_ids

    async def _make_member(self, endpoint: Endpoint, candidate: Candidate, profile: ModelProfile | None) -> None:
        member, deployment = endpoint.members.get(candidate.id), catalogue.member_spec(endpoint.spec, candidate)
        if member is not None and member.spec == deployment:
            member.profile = profile
            return
        runtime = await self._manager.deploy_member(deployment)
        if member is None:
            # Its first request starts an instance: until then it costs a queue, and the time to load can be measured.
            await self._manager.scale(deployment.key, 0)
        endpoint.members[candidate.id] = MemberFunction(candidate, runtime, profile, deployment)

    def _numbers(self, endpoint: Endpoint, member: MemberFunction) -> MeasuredVariant | None:
        """The numbers of a variant: its profile's, else those measured here; None where a batch size is missing."""
        registered = self._models.get(endpoint.key, {}).get(member.candidate.model)
        stored = registered.variants.get(member.candidate.id) if registered is not None else None
        settings = endpoint.spec.settings
        numbers = catalogue.joined(stored, catalogue.profiled(member.candidate, member.profile, settings))
        if numbers is None or not catalogue.is_measured(numbers, settings):
            return None
        return replace(numbers, accuracy=member.accuracy) if numbers.accuracy is None else numbers

    def _publish(self, endpoint: Endpoint) -> None:
        """Let queries get the members that have numbers.

        One that had, and is to be measured in larger batches since the endpoint was updated, keeps its former ones until then.
        """
        models, served = self._models.get(endpoint.key, {}), endpoint.application.members
        members: list[Member] = []
        for member in endpoint.members.values():
            numbers, registered = self._numbers(endpoint, member), models.get(member.candidate.model)
            if registered is None:
                continue
            if numbers is not None:
                variant = catalogue.variant_of(member.candidate, registered, numbers, endpoint.spec.settings)
                members.append(Member(variant, member.runtime))
            elif (former := served.get(member.candidate.id)) is not None and former.runtime is member.runtime:
                members.append(former)
        endpoint.application.measuring = len(members) < len(endpoint.members) or (not members and bool(models))
        endpoint.application.use(members, _common(members))

    async def _measure_all(self, endpoint: Endpoint) -> None:
        """Measure the variants without numbers, one after the other, so that they do not disturb each other."""
        async with endpoint.measuring:
            for name, member in list(endpoint.members.items()):
                signature = member.runtime.signature
                if endpoint.members.get(name) is not member or signature is None or self._numbers(endpoint, member) is not None:
                    continue
                loads = not member.runtime.ready
                try:
                    measured = await measure(member.runtime, signature, catalogue.batches(endpoint.spec.settings))
                except GnomonError as error:
                    if endpoint.members.get(name) is member:  # else it has failed because it was removed
                        self._report(endpoint, name, str(error))
                        await self._end_unserved(endpoint, member)
                    continue
                endpoint.problems.pop(name, None)
                if name not in endpoint.application.members:
                    member.runtime.metrics = FunctionMetrics()  # clients have sent none of these requests
                memory = memory_of(self._manager.instances.seen(member.runtime.name))
                await self._store_measured(endpoint, member, replace(measured, memory_bytes=memory), loaded=loads)

    async def _end_unserved(self, endpoint: Endpoint, member: MemberFunction) -> None:
        """End the instance that a measurement has started. The policy decides only about variants that queries get."""
        if member.candidate.id not in endpoint.application.members:
            with suppress(GnomonError):  # the member has been removed
                await self._manager.scale(member.spec.key, 0)

    async def _store_measured(
        self, endpoint: Endpoint, member: MemberFunction, measured: MeasuredVariant, *, loaded: bool
    ) -> None:
        """Store measurements with the model. With `loaded`, an instance has started for them; else its load time is not new."""
        async with self._changing:
            registered = self._models.get(endpoint.key, {}).get(member.candidate.model)
            if registered is None:
                return  # removed while it was measured
            before = registered.variants.get(member.candidate.id)
            if before is not None and not loaded:
                measured = replace(measured, load_s=before.load_s)
            kept = catalogue.joined(before, measured) or measured
            await self._put(replace(registered, variants={**registered.variants, member.candidate.id: kept}))
            self._publish(endpoint)

    def _report(self, endpoint: Endpoint, name: str, problem: str) -> None:
        if endpoint.problems.get(name) != problem:
            endpoint.problems[name] = problem
            _LOG.warning("application %s: %s is not served: %s", endpoint.key, name, problem)

    # Readings

    def _member_statuses(self, endpoint: Endpoint) -> Sequence[FunctionStatus]:
        found = (self._functions.status(member.spec.key) for member in endpoint.members.values())
        return [status for status in found if status is not None]

    def _status(self, key: FunctionKey) -> ApplicationStatus:
        endpoint, registered = self._endpoint_of(key), self._models.get(key, {}).values()
        models = tuple(sorted(registered, key=lambda model: (model.registered_at, model.model)))
        if endpoint is None:
            return ApplicationStatus(key, models, None)
        application, variants = endpoint.application, []
        for name, member in sorted(endpoint.members.items()):
            status = self._functions.status(member.spec.key)
            chosen = application.members.get(name)
            variants.append(
                VariantStatus(
                    member.candidate,
                    member.spec.key,
                    chosen.variant if chosen is not None else None,
                    status.replicas if status is not None else 0,
                    status.available_replicas if status is not None else 0,
                    application.answered_by.get(name, 0),
                    endpoint.problems.get(name, ""),
                )
            )
        problems = {name: text for name, text in endpoint.problems.items() if name not in endpoint.members}
        progress = {model.model: line for model in models if (line := self._progress.get((key, model.model)))}
        return ApplicationStatus(key, models, endpoint.spec.key, tuple(variants), problems, endpoint.workers, progress)


def is_endpoint(spec: FunctionSpec) -> bool:
    """Return whether the function is the endpoint of an application."""
    return spec.settings.application is not None


def application_key(spec: FunctionSpec) -> FunctionKey:
    """The application of an endpoint."""
    return FunctionKey(spec.settings.application or "", spec.key.namespace)


def check_name(name: str) -> None:
    """Refuse a name that no application can have.

    Raises:
        GnomonError: 400 `invalid_application`.

    """
    if not NAME.fullmatch(name):
        raise bad_request(
            "invalid_application",
            f"{name[:100]!r} is not the name of an application.",
            "Use 1 to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit.",
        )


def _refuse_policy(spec: FunctionSpec) -> None:
    if spec.settings.autoscaler == POLICY:
        raise bad_request(
            "policy_of_applications",
            f"The policy {POLICY} decides about the variants of an application, and {spec.key} is no variant.",
            f"Name another policy, or make it an endpoint by gnomon/model: {APPLICATION}NAME.",
        )


def _one_task(first: ModelSignature, second: ModelSignature) -> bool:
    """Return whether the same requests can be answered by both: equal tensors, or images that each decodes for itself."""
    return (first.inputs, first.outputs, first.kind) == (
        second.inputs,
        second.outputs,
        second.kind,
    ) or first.kind == second.kind != ""


def _common(members: Sequence[Member]) -> ModelSignature | None:
    """The signature of all members; None where their tensors differ."""
    signatures = [member.runtime.signature for member in members]
    first = signatures[0] if signatures else None
    if first is None or any(signature is None or _tensors(signature) != _tensors(first) for signature in signatures):
        return None
    return first


def _tensors(signature: ModelSignature) -> tuple[object, ...]:
    return signature.inputs, signature.outputs, signature.padding


def _problem(endpoint: Endpoint) -> GnomonError | None:
    """The reason why no query can be answered; None if queries can."""
    if endpoint.application.members or not endpoint.problems:
        return None
    name, text = next(iter(endpoint.problems.items()))
    return GnomonError(HTTPStatus.SERVICE_UNAVAILABLE, "variant_cannot_start", f"{name}: {text}")


def _other_kind(key: FunctionKey, kind: str) -> GnomonError:
    return conflict("other_kind", f"{key} is the endpoint of {kind}.", "Remove it first, or take another name.")
