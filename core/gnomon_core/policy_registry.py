"""The policies that a function may name: the built-in ones, and those of installed packages.

Each kind of policy has a table of plug-ins. A package adds to the table by an entry point in the kind's group, whose object is a
`PolicyPlugin`. It is loaded only if the operator names it (`--policy NAME`): to install a package changes nothing.

A plug-in may add own settings: annotations `gnomon/NAME.…`, where NAME is the policy's name. The plug-in's table of settings
reads them, with the readers and the errors of all other settings:

    SETTINGS = (Setting("goal", "goal", integer(1, 100), "a whole number from 1 to 100", "requests for each instance"),)
    OFFER = PolicyPlugin(lambda settings: Backlog(**own_settings(settings, SETTINGS)), "…", SETTINGS)

    gnomon/autoscaler: backlog   gnomon/backlog.goal: "20"   ─▶   Backlog(goal=20)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.settings import PREFIX, Setting, Settings, read_value

Policy_co = TypeVar("Policy_co", covariant=True)
GROUPS = ("gnomon.scaling_policies", "gnomon.scheduling_policies")
"""The entry-point groups, one for each kind of policy."""

_LOG = logging.getLogger("gnomon.policies")


@dataclass(frozen=True, slots=True)
class PolicyPlugin(Generic[Policy_co]):
    """A policy that functions may name: its maker, a sentence for those who choose, and the settings that it alone has.

    The key of such a setting is what follows `gnomon/NAME.` in its annotation.
    """

    make: Callable[[Settings], Policy_co]
    about: str
    settings: tuple[Setting, ...] = ()
    third_party: bool = False
    """True if an entry point of an installed package has the policy, which then has a time limit. The registry sets it."""


Offer = PolicyPlugin
"""Former name of `PolicyPlugin`; installed plug-ins import it."""


@dataclass(frozen=True, slots=True)
class Kind(Generic[Policy_co]):
    """A kind of policies: what one is called, the annotation that names it, its group of entry points, what is built in."""

    word: str
    annotation: str
    group: str
    built_in: Mapping[str, PolicyPlugin[Policy_co]] = field(repr=False)

    def policy(self, name: str, settings: Settings, plugins: Mapping[str, PolicyPlugin[Policy_co]]) -> Policy_co:
        """Make the policy of that name for a function with these settings.

        Raises:
            GnomonError: 400 `unknown_policy`, listing the known ones; `unknown_setting`, `invalid_setting` for a setting of its
                own; `policy_failed` where its maker raises; or what the policy has against the settings.

        """
        plugin = plugins.get(name)
        if plugin is None:
            raise self._unknown(name, plugins)
        try:
            return plugin.make(_with_own(name, settings, plugin.settings))
        except GnomonError:
            raise
        except Exception as error:
            _LOG.exception("the %s %s raised an exception while it was constructed", self.word, name)
            message = f"the {self.word} {name} cannot be constructed with these settings: {type(error).__name__}: {error}."
            raise bad_request("policy_failed", message, "The traceback is in the gateway's log.") from error

    def with_named(self, names: Iterable[str]) -> Mapping[str, PolicyPlugin[Policy_co]]:
        """The built-in policies and, of this kind, the installed ones that the operator names.

        A name that is offered as another kind is left to that.

        Raises:
            GnomonError: 400 `unknown_policy` for a name that no installed package offers or that is built in;
                `invalid_policy` for what cannot be loaded, or is no `PolicyPlugin`.

        """
        plugins = dict(self.built_in)
        for name in names:
            if name in self.built_in:
                raise bad_request(
                    "unknown_policy", f"the {self.word} {name!r} is built in.", "It needs no naming; choose another name."
                )
            if name in _installed(self.group):
                plugins[name] = self._loaded(name)
            elif not any(name in _installed(group) for group in GROUPS):
                known_names = ", ".join(sorted({installed for group in GROUPS for installed in _installed(group)})) or "none"
                raise bad_request(
                    "unknown_policy",
                    f"no installed package offers a policy {name!r}.",
                    f"Offered in the entry point groups {' and '.join(GROUPS)}: {known_names}. "
                    "Install the package into Gnomon's environment (docs/howto/add-a-policy.md).",
                )
        return plugins

    def _loaded(self, name: str) -> PolicyPlugin[Policy_co]:
        [point, *_] = entry_points(group=self.group, name=name)
        try:
            plugin = point.load()
        except Exception as error:
            message = f"the entry point {name} = {point.value} cannot be loaded: {type(error).__name__}: {error}."
            raise bad_request("invalid_policy", message, "See what `python -c 'import …'` says of it.") from error
        if not isinstance(plugin, PolicyPlugin):
            raise bad_request(
                "invalid_policy",
                f"the entry point {name} = {point.value} is {type(plugin).__name__}, not a PolicyPlugin.",
                "Point it at a gnomon_core.policy_registry.PolicyPlugin (docs/howto/add-a-policy.md).",
            )
        return replace(plugin, third_party=True)

    def _unknown(self, name: str, plugins: Mapping[str, PolicyPlugin[Policy_co]]) -> GnomonError:
        message = f"annotation {self.annotation} is {name[:100]!r}, which is no {self.word}."
        return bad_request("unknown_policy", message, _known(name, plugins, self.group))


def own_settings(settings: Settings, table: Sequence[Setting]) -> dict[str, Any]:
    """The function's values of the settings that only its policy has, by field; a setting without a value is absent.

    For makers of policies, whose settings have those of their own policy only.

    Raises:
        GnomonError: 400 `invalid_setting`, with what is allowed.

    """
    given = {_setting_of(key): (key, text) for key, text in settings.own}
    return {
        setting.field: read_value(setting, *given[setting.key], kind="annotation") for setting in table if setting.key in given
    }


def refuse_strays(settings: Settings, *known: Iterable[str]) -> None:
    """Refuse settings of policies that are not known: their author meant another name.

    Raises:
        GnomonError: 400 `unknown_setting`.

    """
    names = {name for some in known for name in some}
    for key, _ in settings.own:
        if _policy_of(key) not in names:
            raise bad_request(
                "unknown_setting",
                f"annotation {key[:100]!r} is a setting of a policy {_policy_of(key)[:100]!r}, which is not known.",
                _known(_policy_of(key), names, *GROUPS),
            )


def described(plugins: Mapping[str, PolicyPlugin[Any]]) -> dict[str, str]:
    """Each plug-in's description, with its own settings."""
    return {name: " ".join((plugin.about, *_described(name, plugin.settings))) for name, plugin in sorted(plugins.items())}


def _with_own(name: str, settings: Settings, table: Sequence[Setting]) -> Settings:
    """The settings with those of this policy's own only, all of which can be read."""
    if not settings.own:
        return settings
    settings = replace(settings, own=tuple(own_setting for own_setting in settings.own if _policy_of(own_setting[0]) == name))
    known = [setting.key for setting in table]
    for key, _ in settings.own:
        if _setting_of(key) not in known:
            known_names = (
                f"Known ones: {', '.join(f'{PREFIX}{name}.{known_name}' for known_name in known)}."
                if known
                else "This policy has no settings of its own."
            )
            raise bad_request("unknown_setting", f"annotation {key[:100]!r} is no setting of {name[:100]}.", known_names)
    own_settings(settings, table)
    return settings


def _known(name: str, known: Iterable[str], *groups: str) -> str:
    """The known policies; for a name that is installed in one of these groups and not in use, how to use it."""
    listed = f"Known ones: {', '.join(sorted(known))}."
    if not any(name in _installed(group) for group in groups):
        return listed
    return f"It is installed here: start Gnomon with `--policy {name[:100]}` to use it. {listed}"


def _installed(group: str) -> set[str]:
    return {point.name for point in entry_points(group=group)}


def _policy_of(key: str) -> str:
    return key.removeprefix(PREFIX).rpartition(".")[0]


def _setting_of(key: str) -> str:
    return key.rpartition(".")[2]


def _described(name: str, table: Sequence[Setting]) -> Iterable[str]:
    return (f"{PREFIX}{name}.{setting.key}: {setting.meaning}, {setting.allowed}{_usual(setting)}." for setting in table)


def _usual(setting: Setting) -> str:
    return f"; {setting.default} without it" if setting.default else ""
