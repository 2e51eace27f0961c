"""The request that deploys a function: OpenFaaS's FunctionDeployment, the same document that faas-cli sends.

Empty fields are absent, but labels and annotations, which faas-cli always sends. Flags of the command line win over the stack
file, `environment_file` wins over `environment`; where the command line names secrets they come first.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon_cli.output import CommandFailed, compact_json
from gnomon_cli.stack import Resources, Stack, StackFunction, read_yaml
from gnomon_core.nearest_names import did_you_mean
from gnomon_core.settings import PREFIX

MODEL = f"{PREFIX}model"
BODY_IMAGE = "GNOMON_BODY_IMAGE"
"""The environment variable that names the image of a Body, as in our stack.yml."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """The options of the command line that apply to every function, or to the one function deployed without a file."""

    namespace: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class Deployment:
    """A FunctionDeployment, ready to be sent."""

    name: str
    namespace: str
    body: bytes


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` options as a map. Neither may be empty."""
    result: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.strip().partition("=")
        if not (equals and key and value):
            raise CommandFailed(f"--{option} {text!r} is not KEY=VALUE.")
        result[key] = value
    return result


def from_stack(stack: Stack, function: StackFunction, overrides: Overrides, *, read_template: bool = True) -> Deployment:
    """The deployment of a function of a stack file.

    Raises:
        CommandFailed: It has neither an image nor a model, or a template or environment file that it names cannot be read.

    """
    annotations = {**function.annotations, **overrides.annotations}
    image = function.image or (model_image() if MODEL in annotations else "")
    if not image:
        raise CommandFailed(
            f"{stack.file}:{function.line}: functions.{function.name} has no image.",
            f"Give it `image: NAME:TAG`, or a model by the annotation {MODEL}.",
        )
    secrets = (*overrides.secrets, *(secret for secret in function.secrets if secret not in overrides.secrets))
    return _deployment(
        name=function.name,
        image=image,
        fprocess=_fprocess(stack, function) if read_template else function.fprocess,
        namespace=overrides.namespace or function.namespace,
        environment={**function.environment, **_environment_files(stack, function), **overrides.environment},
        constraints=overrides.constraints if function.constraints is None else function.constraints,
        secrets=secrets,
        labels={**function.labels, **overrides.labels},
        annotations=annotations,
        limits=function.limits,
        requests=function.requests,
        readonly=function.readonly_root_filesystem or overrides.readonly,
    )


def model_image() -> str:
    """The image of a function that serves a model and names none: on one machine and on Lambda none is pulled."""
    return os.environ.get(BODY_IMAGE, "gnomon/body:latest")


def from_flags(
    *,
    name: str,
    image: str,
    fprocess: str,
    overrides: Overrides,
    limits: Resources,
    requests: Resources,
) -> Deployment:
    """The deployment of an image without a stack file."""
    return _deployment(
        name=name,
        image=image,
        fprocess=fprocess,
        namespace=overrides.namespace,
        environment=overrides.environment,
        constraints=overrides.constraints,
        secrets=overrides.secrets,
        labels=overrides.labels,
        annotations=overrides.annotations,
        limits=limits,
        requests=requests,
        readonly=overrides.readonly,
    )


def own_templates() -> dict[str, Path]:
    """Gnomon's own templates by language: in an installed package beside this module, in a checkout at its root."""
    for folder in (Path(__file__).with_name("templates"), Path(__file__).parents[2] / "templates"):
        if folder.is_dir():
            return {file.parent.name: file.parent for file in sorted(folder.glob("*/template.yml"))}
    return {}


def read_template(stack: Stack, function: StackFunction) -> tuple[Path, Any]:
    """The folder of a function's template and its `template.yml`.

    Raises:
        CommandFailed: It is not there.

    """
    folder = stack.resolve(f"template/{function.lang}")
    if not (folder / "template.yml").is_file() and function.lang in own_templates():
        folder = own_templates()[function.lang]
    file = folder / "template.yml"
    if not file.is_file():
        raise CommandFailed(
            f"{stack.file}:{function.line}: functions.{function.name} is written in {function.lang!r}, but {file} is not there.",
            f"{did_you_mean(function.lang, own_templates())} Gnomon brings {', '.join(own_templates())}; get others with "
            "`faas-cli template pull`, or set `fprocess` so that deploying needs no template.".strip(),
        )
    return folder, read_yaml(file.read_text(encoding="utf-8-sig"), str(file))


def _fprocess(stack: Stack, function: StackFunction) -> str:
    if function.fprocess or not function.has_template:
        return function.fprocess
    _, template = read_template(stack, function)
    return str(template.get("fprocess").text())


def _environment_files(stack: Stack, function: StackFunction) -> dict[str, str]:
    """The `environment:` of each file, a later one winning."""
    result: dict[str, str] = {}
    for name in function.environment_file:
        path = stack.resolve(name)
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = "no text in UTF-8" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)
            raise CommandFailed(
                f"{stack.file}:{function.line}: functions.{function.name}.environment_file: {name}: {reason}."
            ) from None
        result |= read_yaml(text, name).get("environment").texts() or {}
    return result


def _deployment(  # one argument a field of OpenFaaS's type
    *,
    name: str,
    image: str,
    fprocess: str,
    namespace: str,
    environment: Mapping[str, str],
    constraints: tuple[str, ...],
    secrets: tuple[str, ...],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    limits: Resources,
    requests: Resources,
    readonly: bool,
) -> Deployment:
    document: dict[str, Any] = {"service": name, "image": image}
    optional: dict[str, Any] = {
        "namespace": namespace,
        "envProcess": fprocess,
        "envVars": dict(environment),
        "constraints": constraints,
        "secrets": secrets,
    }
    document |= {key: value for key, value in optional.items() if value}
    document |= {"labels": dict(labels), "annotations": dict(annotations)}
    for key, resources in (("limits", limits), ("requests", requests)):
        if resources.memory or resources.cpu:
            document[key] = {k: v for k, v in (("memory", resources.memory), ("cpu", resources.cpu)) if v}
    if readonly:
        document["readOnlyRootFilesystem"] = True
    return Deployment(name, namespace, compact_json(document))
