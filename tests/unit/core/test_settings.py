"""Functions' settings, and policies of installed packages that have settings of their own."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gnomon_autoscaler.registry import BUILT_IN, SCALING, provided, scaling_policy
from gnomon_core.errors import GnomonError
from gnomon_core.functions import read_deployment
from gnomon_core.policy_registry import GROUPS, described, refuse_strays
from gnomon_core.settings import MOST_DEADLINE_S, SCALE_TABLE, TABLE, ScaleSettings, Setting, Settings, read_settings
from gnomon_core.settings_page import default_text, main, page
from gnomon_gateway.scheduling.registry import SCHEDULING, scheduling_policy
from tests.refusals import refused

COMMITTED = Path(__file__).parents[3] / "docs" / "annotations.md"
ALL = (*TABLE, *SCALE_TABLE)
NUMBER = r"\d+(?:\.\d+)?[smh]?"
DIGITS = re.compile(r"[\d.]+")
BOUNDS = re.compile(rf"from ({NUMBER}) to ({NUMBER})")


def usual(setting: Setting) -> Settings | ScaleSettings:
    return Settings() if setting in TABLE else ScaleSettings()


def test_the_committed_page_is_made_from_the_tables(tmp_path: Path) -> None:
    main([str(tmp_path / "annotations.md")])
    made = (tmp_path / "annotations.md").read_text(encoding="utf-8")
    assert made == page()
    assert COMMITTED.read_text(encoding="utf-8") == made, "python -m gnomon_core.settings_page docs/annotations.md makes it"


@pytest.mark.parametrize(
    ("annotations", "missing"),
    [({"gnomon/precision": "auto"}, "gnomon/accuracy-floor"), ({"gnomon/accuracy-floor": "0.9"}, "gnomon/precision: auto")],
)
def test_auto_precision_and_its_floor_need_each_other(annotations: dict[str, str], missing: str) -> None:
    with pytest.raises(GnomonError, match=re.escape(missing)):
        read_settings({}, annotations)
    both = read_settings({}, {"gnomon/precision": "auto", "gnomon/accuracy-floor": "0.9"})
    assert (both.precision, both.accuracy_floor) == ("auto", 0.9)


def test_unknown_engine_is_refused_with_the_known_ones() -> None:
    with refused(400, hint="onnxruntime or openvino"):
        read_settings({}, {"gnomon/engine": "tensorrt"})


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.key)
def test_a_setting_has_a_row_of_its_own_with_its_default(setting: Setting) -> None:
    [row] = [line for line in page().splitlines() if line.startswith(f"| `{setting.key}` |")]
    text = default_text(setting, usual(setting))
    assert text or setting.default, "what holds without it is not said"
    assert f"| `{text}`" in row or not text
    if text:
        assert setting.read(text) == pytest.approx(getattr(usual(setting), setting.field))


@pytest.mark.parametrize(
    "setting", [setting_row for setting_row in ALL if BOUNDS.search(setting_row.allowed)], ids=lambda setting: setting.key
)
def test_settings_page_states_the_real_bounds(setting: Setting) -> None:
    found = BOUNDS.search(setting.allowed)
    assert found
    (low, high) = found.groups()
    for inside in (low, high):
        setting.read(inside)
    for outside in (DIGITS.sub(below, low), DIGITS.sub(above, high)):
        with pytest.raises(ValueError, match=re.escape(outside)):
            setting.read(outside)


def below(number: re.Match[str]) -> str:
    """One less, or one in the last decimal: 1 is followed by 0, 0.01 by 0, 0 by -1."""
    decimals = len(number[0].partition(".")[2])
    return f"{float(number[0]) - 10**-decimals:g}"


def above(number: re.Match[str]) -> str:
    return str(int(number[0]) + 1)


@pytest.mark.parametrize("setting", ALL, ids=lambda setting: setting.key)
def test_refusals_quote_the_settings_page(setting: Setting) -> None:
    texts = {setting.key: "\n"}
    with refused(hint=setting.allowed):
        read_settings(*((None, texts) if setting in TABLE else (texts, None)))
    assert f"| {setting.allowed}".split("gnomon/")[0] in page()


@pytest.mark.parametrize("name", ["asyfunc", "asyfunc-", "batch", "batch+"])
def test_policies_that_split_or_plan_batches_have_batches_of_eight(name: str) -> None:
    assert read_settings({}, {"gnomon/autoscaler": name}).max_batch == 8
    assert read_settings({}, {"gnomon/autoscaler": name, "gnomon/max-batch": "2"}).max_batch == 2


@pytest.mark.parametrize("name", ["batch-mine", "batch+mine", "batches", "asyfunc-mine", "asyfunc2"])
def test_third_party_policy_has_the_usual_defaults_whatever_its_name(name: str) -> None:
    assert read_settings({}, {"gnomon/autoscaler": name}) == Settings(autoscaler=name)


def settings(process: str = "", annotations: dict[str, str] | None = None, **variables: str) -> Settings:
    document = {"service": "f", "image": "i", "envProcess": process, "envVars": variables, "annotations": annotations or {}}
    return read_deployment(document).settings


@pytest.mark.parametrize(
    ("variables", "deadline_s"),
    [
        ({}, 30.0),
        ({"exec_timeout": "60s", "read_timeout": "60s", "write_timeout": "60s"}, 60.0),
        ({"exec_timeout": "1m30s"}, 90.0),
        ({"exec_timeout": "45"}, 45.0),
        ({"write_timeout": "2m"}, 120.0),
        ({"read_timeout": "40s"}, 40.0),
        ({"exec_timeout": "60s", "write_timeout": "20s"}, 20.0),
        ({"read_timeout": "5s", "write_timeout": "60s"}, 60.0),
        ({"exec_timeout": "0", "write_timeout": "50s"}, 50.0),
        ({"exec_timeout": "0s"}, 30.0),
        ({"exec_timeout": "soon", "read_timeout": "", "write_timeout": "-3s"}, 30.0),
        ({"exec_timeout": "500h"}, MOST_DEADLINE_S),
    ],
)
def test_the_watchdogs_timeouts_are_the_deadline_where_none_is_said(variables: dict[str, str], deadline_s: float) -> None:
    assert settings(**variables).deadline_s == deadline_s


def test_gnomons_own_deadline_comes_first() -> None:
    assert settings(annotations={"gnomon/deadline-ms": "1500"}, exec_timeout="60s").deadline_s == 1.5


def test_the_objective_follows_the_deadline_unless_it_is_said() -> None:
    assert settings(exec_timeout="60s").slo_s == 60.0
    assert settings(annotations={"gnomon/slo-ms": "200"}, exec_timeout="60s").slo_s == 0.2


def test_a_program_for_each_request_is_ended_by_its_watchdog_before_the_gateway_answers() -> None:
    assert settings("sh", exec_timeout="2s").deadline_s == 3.0


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
    assert refused.value.hint.startswith("It is installed here: start Gnomon with `--policy mine` to use it. Known ones: ")
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


def test_settings_of_an_unused_policy_are_kept_and_unknown_ones_refused() -> None:
    settings = read_settings({}, {"gnomon/few.most": "3", "gnomon/autoscaler": "od"})
    assert scaling_policy("od", settings).name == "od"
    refuse_strays(settings, BUILT_IN, ["few"])
    with pytest.raises(GnomonError, match=r"'gnomon/few.most' is a setting of a policy 'few', which is not known\. Known ones:"):
        refuse_strays(settings, BUILT_IN)
    with pytest.raises(GnomonError, match=r"is no setting of od\. This policy has no settings of its own"):
        scaling_policy("od", read_settings({}, {"gnomon/od.most": "3"}))


def test_a_maker_that_raises_is_told_to_who_deploys(install: Callable[..., None]) -> None:
    install(scaling="mine = theirs:RAISES")
    with refused(400, "policy_failed", match=r"mine cannot be constructed with these settings: AttributeError: .*no_such_field"):
        scaling_policy("mine", Settings(), SCALING.with_named(["mine"]))


def test_in_front_of_a_provider_it_is_refused_as_all_that_scale(install: Callable[..., None]) -> None:
    install(scaling="few = theirs:FEW")
    settings = read_settings({}, {"gnomon/few.most": "3", "gnomon/autoscaler": "few"})
    with pytest.raises(GnomonError, match="few cannot be used here: the provider decides"):
        scaling_policy("few", settings, provided(SCALING.with_named(["few"])))
