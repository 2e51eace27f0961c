"""The options of `gnomon serve` as plain values: the command line is parsed without importing a server.

The state folder holds what must outlive the process, and commands on the same machine find its secrets there: `--state`, else
GNOMON_STATE, else `.gnomon` in the working directory. A project's functions stay with the project.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gnomon_core.applications import DeclaredApplication
from gnomon_core.profiles import Network
from gnomon_platforms.aws_lambda.resources import LambdaOptions
from gnomon_platforms.provider.api import ProviderOptions

STATE_VARIABLE = "GNOMON_STATE"
DEFAULT_STATE = ".gnomon"
FETCHED = "fetched-models"
"""The folder, in the state folder, of models fetched from a remote repository, with their profiles."""

UPLOADS = "uploads"
"""The folder, in the state folder, of models that are being uploaded."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """A Kubernetes cluster that functions run on.

    `kubeconfig` None takes KUBECONFIG, the cluster of this pod, or ~/.kube/config. With `cluster_wide`, functions may be in
    every namespace that is marked `openfaas: "1"`, else in openfaas-fn alone. `advertise` is where other gateways reach this
    one, empty for the address that it listens on. With `coordinator_token`, the file of the token for nodes'
    coordinators, functions that name a model may have Shadows; `models_claim` is the volume from which their pods read models.
    With `peer_secret`, the file of the gateways' shared secret, gateways share the functions if the file exists, and reach each
    other at `inside_port`. `network` describes the network between nodes: with it a Body on a full node may have its Shadow on
    another. `image_pull_policy`, `pull_secrets` and `runtime_class` are Kubernetes', for all functions' pods.
    """

    kubeconfig: Path | None = None
    cluster_wide: bool = False
    advertise: str = ""
    coordinator_token: Path | None = None
    models_claim: str | None = None
    peer_secret: Path | None = None
    inside_port: int = 8082
    network: Network | None = None
    image_pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str | None = None


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `gnomon serve`.

    `state` holds what must outlive a restart. `models` is the model repository, a folder or s3://BUCKET/PREFIX. `cores` bounds
    the node, None for all of the machine's. `pool` is how many empty containers are kept from which Shadows are made; with 0,
    torch is loaded with the first model. `reserved_cores` is what is held back for Shadows; with `lend_cores`, `gnomon` may lend
    cores to batches. `images` is a further table of images and their runtimes. `secrets` is the folder of `basic-auth-user` and
    `basic-auth-password`, None for one in the state folder. `policies` are the third-party policies that may be loaded,
    `callback_hosts` the hosts that an asynchronous answer may be sent to. `max_body_bytes` bounds the body of a request to a
    function, `max_model_bytes` an upload of a model. `behind` says that OpenFaaS's own gateway is in front of this one, `convert`
    that models are converted for faster engines in the background. `store` is the address of a Redis for the registered models of
    applications, empty for the state folder. `application` is one that a file declares. With `application_port` it has a port of
    its own on all addresses, as in the container of a function; 0 takes a free one.

    `platform` is a key of `gnomon_server.platforms.PLATFORMS`; `aws`, `cluster` and `provider` are the options of the platforms
    lambda, openfaas and provider, on which `cores`, `pool`, `reserved_cores`, `lend_cores` and `images` have no effect.
    """

    host: str
    port: int
    state: Path
    models: str
    cores: int | None
    pool: int
    reserved_cores: float
    images: Path | None
    basic_auth: bool
    secrets: Path | None
    namespaces: tuple[str, ...]
    policies: tuple[str, ...]
    callback_hosts: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    max_body_bytes: int
    max_model_bytes: int
    verbose: bool
    platform: str = "local"
    aws: LambdaOptions | None = None
    cluster: ClusterOptions | None = None
    provider: ProviderOptions | None = None
    store: str = ""
    behind: bool = False
    convert: bool = False
    lend_cores: bool = False
    application: DeclaredApplication | None = None
    application_port: int | None = None

    @property
    def model_folder(self) -> Path:
        """The repository's folder; for a remote repository, the folder of what was fetched from it, with the profiles."""
        return self.state / FETCHED if "://" in self.models else Path(self.models)


def state_folder(flag: str, environment: Mapping[str, str]) -> Path:
    """The state folder, which need not exist yet."""
    return Path(flag or environment.get(STATE_VARIABLE, "") or DEFAULT_STATE).expanduser().absolute()


def payload_secret_file(state: Path) -> Path:
    """The file of the secret that signs builds. `gnomon serve` makes it, readable by its user only; `gnomon up` reads it."""
    return state / "payload-secret"
