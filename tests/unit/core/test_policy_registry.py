"""Policies of installed packages count when the operator names them, have settings of their own, and say what is wrong."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon_autoscaler.registry import BUILT_IN, SCALING, provided, scaling_policy
from gnomon_core.errors import GnomonError
from gnomon_core.policy_registry import GROUPS, described, refuse_strays
from gnomon_core.settings import Settings, read_settings
from gnomon_gateway.scheduling.registry import SCHEDULING, scheduling_policy
from tests.refusals import refused

MODULE = """
from dataclasses import dataclass

from gnomon_autoscaler import BUILT_IN, PolicyPlugin
from gnomon_core.policy_registry import own_settings
from gnomon_core.settings import integer
from gnomon_core.settings import Setting


@dataclass
class Few:
    name: str = "few"
    most: int = 4


SETTINGS = (Setting("most", "most", integer(1, 9), "a whole number from 1 to 9", "the most that wait", "4"),)
FEW = PolicyPlugin(lambda settings: Few(**own_settings(settings, SETTINGS)), "Waits for a few.", SETTINGS)
LIKE_OD = PolicyPlugin(BUILT_IN["od"].make, "As od.")
RAISES = PolicyPlugin(lambda settings: settings.no_such_field, "Raises.")
WRONG = "no offer"
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a package that offers these as policies of each kind."""

    def installed(scaling: str = "", scheduling: str = "") -> None:
        information = tmp_path / "theirs-1.0.dist-info"
        information.mkdir()
        (tmp_path / "theirs.py").write_text(MODULE)
        (information / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
        lines = [f"[{group}]\n{names}\n" for group, names in zip(GROUPS, (scaling, scheduling), strict=True)]
        (information / "entry_points.txt").write_text("".join(lines).replace("; ", "\n"))
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "theirs", raising=False)

    return installed


def test_an_installed_policy_counts_only_when_it_is_named(install: Callable[..., None]) -> None:
    install(scaling="mine = theirs:LIKE_OD")
    assert set(SCALING.with_named([])) == set(BUILT_IN)
    assert "theirs" not in sys.modules
    with pytest.raises(GnomonError) as refused:
        scaling_policy("mine", Settings())
    assert (refused.value.code, refused.value.status) == ("unknown_policy", 400)
    assert refused.value.hint.startswith(
        "It is installed here: whoever starts Gnomon names it with `--policy mine`. Known ones: "
    )
    assert scaling_policy("mine", Settings(), SCALING.with_named(["mine"])).name == "od"


def test_a_policy_of_an_installed_package_is_marked_as_a_third_partys(install: Callable[..., None]) -> None:
    install(scaling="mine = theirs:LIKE_OD")
    assert {name: plugin.third_party for name, plugin in SCALING.with_named(["mine"]).items() if name in {"mine", "od"}} == {
        "mine": True,
        "od": False,
    }


def test_a_policy_of_either_kind_is_named_alike(install: Callable[..., None]) -> None:
    install(scaling="mine = theirs:LIKE_OD", scheduling="few = theirs:FEW")
    assert set(SCALING.with_named(["mine", "few"])) == {*BUILT_IN, "mine"}
    schedulers = SCHEDULING.with_named(["mine", "few"])
    assert set(schedulers) == {*SCHEDULING.built_in, "few"}
    assert scheduling_policy("few", Settings(), schedulers).name == "few"


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("absent", "unknown_policy", "few, mine, missing, wrong"),
        ("od", "unknown_policy", "is built in"),
        ("wrong", "invalid_policy", "wrong = theirs:WRONG is str, not a PolicyPlugin"),
        ("missing", "invalid_policy", "missing = nowhere:OFFER cannot be loaded: ModuleNotFoundError: No module named 'nowhere'"),
    ],
)
def test_a_name_that_cannot_be_loaded_is_refused(install: Callable[..., None], name: str, code: str, said: str) -> None:
    install("mine = theirs:LIKE_OD; wrong = theirs:WRONG; missing = nowhere:OFFER", "few = theirs:FEW")
    with pytest.raises(GnomonError) as refused:
        SCALING.with_named([name])
    assert refused.value.code == code
    assert said in str(refused.value)


def few(install: Callable[..., None], **own: str) -> object:
    """The policy of a function that says these of its settings."""
    install(scheduling="few = theirs:FEW")
    annotations = {f"gnomon/few.{key}": text for key, text in own.items()}
    settings = read_settings({}, {"gnomon/scheduler": "few"} | annotations)
    return scheduling_policy("few", settings, SCHEDULING.with_named(["few"]))


def test_a_policy_has_settings_of_its_own(install: Callable[..., None]) -> None:
    assert getattr(few(install, most=" 7 "), "most", None) == 7
    assert described(SCHEDULING.with_named(["few"]))["few"] == (
        "Waits for a few. gnomon/few.most: the most that wait, a whole number from 1 to 9; 4 without it."
    )


def test_without_one_its_own_default_holds(install: Callable[..., None]) -> None:
    assert getattr(few(install), "most", None) == 4


@pytest.mark.parametrize(
    ("own", "code", "said"),
    [
        ({"most": "10"}, "invalid_setting", "annotation gnomon/few.most is '10'. It must be a whole number from 1 to 9."),
        ({"must": "1"}, "unknown_setting", "annotation 'gnomon/few.must' is no setting of few. Known ones: gnomon/few.most."),
    ],
)
def test_unreadable_policy_option_is_refused(install: Callable[..., None], own: dict[str, str], code: str, said: str) -> None:
    with pytest.raises(GnomonError) as refused:
        few(install, **own)
    assert (refused.value.code, str(refused.value)) == (code, said)


def test_settings_of_an_installed_policy_that_is_not_named_say_how_it_is(install: Callable[..., None]) -> None:
    install(scheduling="few = theirs:FEW")
    with pytest.raises(GnomonError, match="`--policy few`"):
        refuse_strays(read_settings({}, {"gnomon/few.most": "3"}), BUILT_IN)


def test_settings_of_another_policy_wait_for_it_and_those_of_none_are_refused() -> None:
    settings = read_settings({}, {"gnomon/few.most": "3", "gnomon/autoscaler": "od"})
    assert scaling_policy("od", settings).name == "od"
    refuse_strays(settings, BUILT_IN, ["few"])
    with pytest.raises(GnomonError, match=r"'gnomon/few.most' is a setting of a policy 'few', which is not known\. Known ones:"):
        refuse_strays(settings, BUILT_IN)
    with pytest.raises(GnomonError, match=r"is no setting of od\. It has none of its own"):
        scaling_policy("od", read_settings({}, {"gnomon/od.most": "3"}))


def test_a_maker_that_raises_is_told_to_who_deploys(install: Callable[..., None]) -> None:
    install(scaling="mine = theirs:RAISES")
    with refused(400, "policy_failed", match=r"mine cannot be made for these settings: AttributeError: .*no_such_field"):
        scaling_policy("mine", Settings(), SCALING.with_named(["mine"]))


def test_in_front_of_a_provider_it_is_refused_as_all_that_scale(install: Callable[..., None]) -> None:
    install(scaling="few = theirs:FEW")
    settings = read_settings({}, {"gnomon/few.most": "3", "gnomon/autoscaler": "few"})
    with pytest.raises(GnomonError, match="few cannot be used here: the provider decides"):
        scaling_policy("few", settings, provided(SCALING.with_named(["few"])))
