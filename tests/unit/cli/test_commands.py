"""Commands: help, the gateway they talk to, options of `gnomon serve`, models and plans."""

import base64
import csv
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from gnomon_cli.client import Gateway
from gnomon_cli.commands.lambda_profile import grid_of
from gnomon_cli.commands.planning import sizes_of_file, timeouts_of
from gnomon_cli.commands.serve import read_options, serve
from gnomon_cli.commands.serve_options import knative_gateway_options, knative_options, read_cluster_options
from gnomon_cli.credentials import Credentials, config_file, find, forget, remember
from gnomon_cli.main import ALIASES, TABLE, gnomon
from gnomon_cli.options import gateway_url
from gnomon_cli.output import CommandFailed
from gnomon_core.addresses import http_url
from gnomon_core.errors import GnomonError
from gnomon_core.profiles import LatencyTable, ModelProfile, Network
from gnomon_planner.service_time import Measurement, fit_service_times
from gnomon_profiler.repository import DirectoryRepository
from gnomon_server.options import ServeOptions
from gnomon_server.process import check_port
from tests.contracts.small_models import files, two_blocks, with_layers
from tests.refusals import refused

HEAVY = ("urllib3", "yaml", "torch", "numpy", "asyncio", "ssl", "starlette")


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(gnomon)
    for name in TABLE:
        command = gnomon.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ((f"{name} {sub}", inner) for sub, inner in command.commands.items())
        else:
            yield name, command


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_a_commands_help_has_a_sentence_options_explained_and_an_example(name: str, command: click.Command) -> None:
    text = CliRunner().invoke(gnomon, [*name.split(), "--help"]).output
    assert command.help
    assert f"gnomon {name}" in text.partition("Examples:")[2]
    unexplained = [option.name for option in command.params if isinstance(option, click.Option) and not option.help]
    assert unexplained == []


def test_aliases_lead_somewhere() -> None:
    assert set(ALIASES.values()) <= set(TABLE)


def test_a_misspelt_command_is_a_usage_error_with_the_nearest_one() -> None:
    result = CliRunner().invoke(gnomon, ["deplyo"])
    assert result.exit_code == 2
    assert "Did you mean 'deploy'?" in result.output


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from gnomon_cli.main import gnomon; gnomon.main(['--help'], standalone_mode=False); "
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert result.stdout.splitlines()[-1] == "[]"


USUAL = "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("flag", "stack", "variable", "url"),
    [
        ("", "", "", USUAL),
        ("https://Flag.example/", "http://stack", "http://variable", "https://flag.example"),
        ("", "http://stack:80", "http://variable", "http://stack:80"),
        ("", USUAL, "http://variable", "http://variable"),
        (USUAL, "http://stack", "http://variable", USUAL),
        ("host:9000", "", "", "http://host:9000"),
        ("httpd:9000", "", "", "http://httpd:9000"),
        ("ftp://host", "", "", "ftp://host"),
    ],
)
def test_the_gateways_address(flag: str, stack: str, variable: str, url: str) -> None:
    assert gateway_url(flag, stack, {"OPENFAAS_URL": variable}) == url


def test_logins_of_other_gateways_and_unknown_fields_are_kept(tmp_path: Path) -> None:
    environment = {"OPENFAAS_CONFIG": str(tmp_path)}
    path = config_file(environment)
    path.write_text("auths:\n- gateway: http://other\n  auth: oauth2\n  token: abc\n  options: [{name: a, value: b}]\n")
    remember("http://here", "ada", "pass:word", environment)
    assert find("http://here", "ignored", environment).authorization == "Basic " + base64.b64encode(b"ada:pass:word").decode()
    assert find("http://other", "", environment).authorization == "Bearer abc"
    assert find("http://other", "given", environment).authorization == "Bearer given"
    assert find("http://nobody", "", environment).authorization == ""
    assert forget("http://here", environment)
    assert not forget("http://here", environment)
    assert "options" in path.read_text()


def test_in_ci_the_file_lies_in_the_working_directory() -> None:
    assert config_file({"CI": "true"}) == Path(".openfaas/config.yml")
    assert config_file({"CI": "1", "OPENFAAS_CONFIG": "/x"}) == Path("/x/config.yml")


@pytest.mark.parametrize("text", ["a: [", "[" * 100_000, "auths:\n- {gateway: http://here, auth: basic, token: '***'}"])
def test_a_broken_file_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yml").write_text(text)
    with pytest.raises(CommandFailed, match="og in again"):
        find("http://here", "", {"OPENFAAS_CONFIG": str(tmp_path)})


NOBODY = Credentials()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize("url", ["http://[::1", "http://127.0.0.1:99999", "ftp://127.0.0.1", "http:"])
def test_invalid_gateway_addresses_are_refused(url: str) -> None:
    with pytest.raises(CommandFailed, match=r"is not an address. Write it as http://HOST:PORT"):
        Gateway(url, NOBODY).call("GET", "/healthz")


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "http://127.0.0.1:99999", "http://[::1"])
def test_invalid_proxy_addresses_are_refused(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    with pytest.raises(CommandFailed, match=r"The proxy that the environment names for http://gateway\.example is not"):
        Gateway("http://gateway.example", NOBODY).call("GET", "/healthz")


def test_a_proxy_may_be_named_without_its_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """curl takes a proxy without a scheme, too."""
    monkeypatch.setenv("http_proxy", "127.0.0.1:1")
    with pytest.raises(CommandFailed, match=r"Cannot reach http://gateway\.example"):
        Gateway("http://gateway.example", NOBODY).call("GET", "/healthz")


def parsed_options(state: Path, *arguments: str) -> ServeOptions:
    """Options that `gnomon serve` reads from these arguments."""
    with serve.make_context("serve", ["--state", str(state), "--platform", "openfaas", *arguments]) as context:
        return read_options(**context.params)


def test_application_of_a_file_is_served_on_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "photos.yml"
    file.write_text('name: photos\nmodels: {lite0: 0.75, "lite1@2": null}\nannotations: {gnomon/max-batch: "4"}\n')
    options = parsed_options(tmp_path, "--platform", "local", "--application", str(file), "--application-port", "8080")
    assert options.application is not None
    assert options.application.models == {"lite0": 0.75, "lite1@2": None}
    endpoint = options.application.endpoint
    assert (endpoint.key.name, endpoint.settings.application, endpoint.settings.max_batch) == ("photos", "photos", 4)
    assert options.application_port == 8080


def test_application_of_a_file_is_refused_where_no_gateway_serves_it(tmp_path: Path) -> None:
    file = tmp_path / "photos.yml"
    file.write_text("name: photos\nmodels: {lite0: 0.75}\n")
    with refused(400, "application_unused", hint="from the template gnomon-application"):
        parsed_options(tmp_path, "--application", str(file))
    result = CliRunner().invoke(gnomon, ["serve", "--platform", "knative", "--application", str(file)])
    assert isinstance(result.exception, GnomonError)
    assert result.exception.code == "application_unused"
    with refused(400, "application_missing", hint="--application FILE"):
        parsed_options(tmp_path, "--platform", "local", "--application-port", "8080")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- photos", "not a mapping"),
        ("name: photos", "no models"),
        ("name: photos\nmodels: {}", "no models"),
        ("models: {lite0: 0.75}", "no name"),
        ("name: Photos\nmodels: {lite0: 0.75}", "not a function name"),
        ("name: photos\nmodels: {lite0: 75}", "accuracy of lite0 is '75'"),
        ("name: photos\nmodels: {lite0: 0.75}\nannotation: {}", "the key 'annotation'"),
        ("name: photos\nmodels: {lite0: 0.75}\nannotations: [a]", "not a mapping"),
        ("name: photos\nmodels: {lite0: 0.75}\nannotations: {gnomon/max-batch: 4}", "annotations is not an object of texts"),
        ("name: photos\nmodels: {lite0: 0.75}\nannotations: {gnomon/max-batch: none}", "gnomon/max-batch"),
        ("name: [photos", "is not YAML"),
        ("[" * 100_000, "is not YAML"),
    ],
)
def test_file_that_declares_no_application_is_refused_with_its_name_and_what_is_wrong(
    text: str, said: str, tmp_path: Path
) -> None:
    file = tmp_path / "photos.yml"
    file.write_text(text)
    with refused(400, message=str(file)) as caught:
        parsed_options(tmp_path, "--platform", "local", "--application", str(file))
    assert said in caught.value.message


def test_repository_named_by_a_relative_path_is_found_by_instances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instances have a working directory of their own."""
    monkeypatch.chdir(tmp_path)
    assert parsed_options(tmp_path, "--platform", "local", "--models", "mine").models == str(tmp_path / "mine")
    assert parsed_options(tmp_path, "--platform", "local", "--models", "s3://bucket/mine").models == "s3://bucket/mine"


@pytest.mark.parametrize("written", ["fd00::1", "[fd00::1]"])
def test_an_address_is_the_same_with_brackets_and_without(written: str, tmp_path: Path) -> None:
    options = parsed_options(tmp_path, "--host", written, "--advertise", written)
    assert (options.host, options.cluster.advertise) == ("fd00::1", "fd00::1"), "as sockets take it"
    assert http_url(options.cluster.advertise, 8080) == "http://[fd00::1]:8080"


@pytest.mark.parametrize("written", ["10.0.0.1", "gateway.example", ""])
def test_names_and_other_addresses_are_left_as_they_are(written: str, tmp_path: Path) -> None:
    options = parsed_options(tmp_path, "--advertise", written)
    assert options.cluster.advertise == written


@pytest.mark.parametrize("option", ["--host", "--advertise"])
@pytest.mark.parametrize("written", ["10.0.0.1:8080", "[fd00::1]:8080", "[fd00::1", "[gateway]", "http://gateway"])
def test_host_with_a_port_is_refused(option: str, written: str, tmp_path: Path) -> None:
    with pytest.raises(click.BadParameter, match="is no host"):
        parsed_options(tmp_path, option, written)


@pytest.mark.skipif(not socket.has_ipv6, reason="the machine knows no IPv6")
def test_where_nobody_can_listen_is_named_as_it_is_written() -> None:
    """2001:db8::/32 is for documents: no machine has an address of it."""
    with pytest.raises(GnomonError, match=r"Cannot listen on \[2001:db8::1\]:8080: "):
        check_port("2001:db8::1", 8080)


@pytest.mark.parametrize(("written", "largest"), [("200Mi", 200 << 20), ("1000000", None), ("1Gi", None), ("many", None)])
def test_the_largest_body_is_an_amount_of_memory_within_bounds(written: str, largest: int | None, tmp_path: Path) -> None:
    if largest is not None:
        assert parsed_options(tmp_path, "--max-body", written).max_body_bytes == largest
        return
    with pytest.raises(click.BadParameter):
        parsed_options(tmp_path, "--max-body", written)
    assert parsed_options(tmp_path).max_body_bytes == 64 << 20


GIVEN = {
    "kubeconfig": Path("admin.conf"),
    "policies": (),
    "host": "127.0.0.1",
    "port": 0,
    "models": None,
    "state": None,
    "coordinator_token": None,
    "network_gbps": None,
    "network_rtt_ms": 0.0,
}


def test_serve_without_a_namespace_scales_all_and_keeps_its_lease_in_knative_serving() -> None:
    options = knative_options({**GIVEN, "namespaces": ()})
    assert (options.scaled.namespace, options.lease_namespace) == (None, "knative-serving")


def test_each_namespace_has_its_own_leader() -> None:
    options = knative_options({**GIVEN, "namespaces": ("team-a",)})
    assert (options.scaled.namespace, options.lease_namespace) == ("team-a", "team-a")
    assert options.kubeconfig == Path("admin.conf")


def test_several_namespaces_are_refused() -> None:
    with pytest.raises(GnomonError, match="a process serves all namespaces or one"):
        knative_options({**GIVEN, "namespaces": ("team-a", "team-b")})


def test_the_gateway_serves_all_namespaces_or_one() -> None:
    given = {**GIVEN, "page_port": 9090}
    assert knative_gateway_options({**given, "namespaces": ()}).namespace is None
    assert knative_gateway_options({**given, "namespaces": ("team-a",)}).namespace == "team-a"
    with pytest.raises(GnomonError, match="a process serves all namespaces or one"):
        knative_gateway_options({**given, "namespaces": ("team-a", "team-b")})


def test_the_gateway_foretells_batches_where_it_is_told_of_models(tmp_path: Path) -> None:
    given = {**GIVEN, "page_port": 9090, "namespaces": ()}
    assert knative_gateway_options(given).models is None
    assert knative_gateway_options({**given, "models": str(tmp_path), "state": ""}).models is not None


def test_shadows_need_models_to_hold_blocks_of() -> None:
    with pytest.raises(GnomonError, match="--models is missing"):
        knative_options({**GIVEN, "namespaces": (), "coordinator_token": Path("token")})


def test_with_models_and_a_token_the_class_may_ask_nodes_for_shadows(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("of the coordinators\n")
    given = {**GIVEN, "namespaces": (), "models": str(tmp_path), "state": ""}
    alone = knative_options(given).scaled.models
    assert alone.nodes is None
    options = knative_options({**given, "coordinator_token": token}).scaled.models
    assert options.nodes.token == "of the coordinators"


def test_network_options_are_those_of_every_cluster() -> None:
    with refused(400, "bad_network"):
        knative_options({**GIVEN, "namespaces": (), "network_gbps": 0.0})


def declared(gbps: float | None, rtt_ms: float = 0.0) -> Network | None:
    options = read_cluster_options(
        (), kubeconfig=None, cluster_wide=False, advertise="", coordinator_token=None, models_claim=None,
        network_gbps=gbps, network_rtt_ms=rtt_ms, peer_secret=None, inside_port=8082,
    )  # fmt: skip
    return options.network


def test_network_needs_bandwidth_and_round_trip_time() -> None:
    assert declared(None, 0.2) is None
    assert declared(10, 0.2) == Network.of(10, 0.2)


@pytest.mark.parametrize(("gbps", "rtt_ms"), [(0, 0), (-1, 0), (float("inf"), 0), (float("nan"), 0), (10, -1)])
def test_invalid_network_is_refused(gbps: float, rtt_ms: float) -> None:
    with refused(400, "bad_network"):
        declared(gbps, rtt_ms)


@pytest.fixture
def repository(tmp_path: Path) -> DirectoryRepository:
    return DirectoryRepository(tmp_path)


def models(folder: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(gnomon, ["models", command, *arguments, "--models", str(folder)])


def test_blocks_are_shown_and_in_the_document_as_well(repository: DirectoryRepository, tmp_path: Path) -> None:
    repository.put("two", "1", two_blocks()[0])
    shown = models(tmp_path, "show", "two", "--blocks")
    assert [line.split()[:2] for line in shown.output.splitlines() if line[:2] in ("0 ", "1 ")] == [
        ["0", "first"],
        ["1", "second"],
    ]
    document = json.loads(models(tmp_path, "show", "two", "--blocks", "--json").output)
    found = [(block["number"], block["name"], block["input_bytes"], block["output_bytes"]) for block in document["blocks"]]
    assert found == [(0, "first", 4, 4), (1, "second", 4, 4)]
    assert [block["parameter_bytes"] for block in document["blocks"]] == [4 * 72, 4 << 19]
    assert "blocks" not in json.loads(models(tmp_path, "show", "two", "--json").output)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_model_without_blocks_says_so(repository: DirectoryRepository, tmp_path: Path, options: tuple[str, ...]) -> None:
    repository.put("scale", "1", files())
    shown = models(tmp_path, "show", "scale", "--blocks", *options)
    assert (shown.exit_code, "has no layer blocks" in shown.output) == (1, True)


def test_a_version_is_that_of_a_model_of_the_catalog_too(repository: DirectoryRepository, tmp_path: Path) -> None:
    repository.put("efficientnet-lite0", "2", with_layers(files()))
    added = models(tmp_path, "add", "efficientnet-lite0", "--version", "2", "--no-engines", "--json")
    assert (added.exit_code, json.loads(added.output)["version"]) == (0, "2")
    assert [entry.version for entry in repository.list()] == ["2"]


def test_shapes_of_a_model_that_has_its_own_are_refused(tmp_path: Path) -> None:
    added = models(tmp_path, "add", "efficientnet-lite0", "--shape", "3x8x8")
    assert (added.exit_code, "--from" in added.output) == (2, True)


def test_a_damaged_model_is_broken_and_the_others_are_whole(repository: DirectoryRepository, tmp_path: Path) -> None:
    repository.put("scale", "1", files())
    entry = repository.put("two", "1", two_blocks()[0])
    assert models(tmp_path, "verify").output == "scale@1: whole\ntwo@1: whole\n"
    entry.weights.chmod(0o644)
    entry.weights.write_bytes(entry.weights.read_bytes()[:-1])
    result = models(tmp_path, "verify", "scale@1", "two@1")
    assert (result.exit_code, "scale@1: whole\ntwo@1: broken\n" in result.output) == (1, True)


def test_the_catalog_is_told_without_a_repository(tmp_path: Path) -> None:
    result = models(tmp_path / "nowhere", "list", "--catalog")
    assert result.output.splitlines()[0] == "efficientnet-lite0"
    assert not (tmp_path / "nowhere").exists()


PROFILES = Path(__file__).parents[3] / "profiles"


def drawn(output: Path, file: Path, *options: str) -> Result:
    return CliRunner().invoke(gnomon, ["models", "figures", str(file), "--output", str(output), "--tables-only", *options])


@pytest.mark.parametrize(("name", "batches"), [("resnet50", {"3", "4", "5"}), ("vit_b_16", {"4"})])
def test_the_published_profiles_have_curves_of_the_batches_they_were_measured_in(
    name: str, batches: set[str], tmp_path: Path
) -> None:
    result = drawn(tmp_path, PROFILES / f"{name}.json")
    assert result.exit_code == 0, result.output
    with (tmp_path / f"{name}-figure-3.csv").open(encoding="utf-8") as file:
        assert {row["to_batch"] for row in csv.DictReader(file)} == batches


def test_a_profile_without_the_batches_that_are_compared_is_refused(tmp_path: Path) -> None:
    profile = ModelProfile.from_json(json.loads((PROFILES / "resnet50.json").read_bytes()))

    def two_only(table: LatencyTable) -> LatencyTable:
        return LatencyTable({1: {2: table.seconds[1][2]}})

    few = replace(profile, whole=two_only(profile.whole), blocks=tuple(map(two_only, profile.blocks)))
    (tmp_path / "few.json").write_text(json.dumps(few.to_json()), encoding="utf-8")
    result = drawn(tmp_path / "figures", tmp_path / "few.json")
    assert result.exit_code != 0
    assert "batches of 2 and 4" in result.output
    assert "--batches 1-8" in result.output
    assert not (tmp_path / "figures").exists()


def test_planning_grid_of_under_three_percent_predicts_all_cells() -> None:
    cells = grid_of((128, 3008), (1, 20))
    assert len(cells) < 0.03 * 46 * 20
    assert {(128, 1), (128, 20), (3008, 1), (3008, 20)} <= set(cells)
    assert all((size - 128) % 64 == 0 for size, _ in cells)

    def seconds(size: int, batch: int) -> float:
        return (0.01 + 0.02 * batch) * 1769 / size

    model = fit_service_times([Measurement(size, batch, seconds(size, batch)) for size, batch in cells], core_size=1769)
    assert model.seconds(960, 11) == pytest.approx(seconds(960, 11), rel=0.01)


def test_too_few_cells_for_a_model_are_refused() -> None:
    with refused(code="too_few_cells"):
        grid_of((1024, 1152), (1, 4))


def measured(tmp_path: Path, memories_mb: tuple[float, ...], batches: tuple[int, ...]) -> Path:
    """Cells of a model whose work a share of a core divides."""
    cells = [
        {"memory_mb": memory, "batch": batch, "ms": (10 + 20 * batch) * 1769 / memory}
        for memory in memories_mb
        for batch in batches
    ]
    file = tmp_path / "cells.json"
    file.write_text(json.dumps({"measured": cells}))
    return file


def test_measured_memories_may_be_chosen_as_well_as_those_between_them(tmp_path: Path) -> None:
    found = sizes_of_file(measured(tmp_path, (1000, 1100, 1500), (1, 4, 8)), 8, on_lambda=True)
    assert [size.memory_mb for size in found] == [1000, 1064, 1100, 1128, 1192, 1256, 1320, 1384, 1448, 1500]


def test_the_papers_configurations_are_as_many_as_it_has(tmp_path: Path) -> None:
    found = sizes_of_file(measured(tmp_path, (1280, 1792, 2304, 3008), (1, 10, 20)), 20, on_lambda=True)
    assert len(found) * len(found[0].service_s) * len(timeouts_of("10:490:10")) == 27_440


def test_batches_smaller_than_the_measured_ones_take_as_long_as_the_smallest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [*_, largest] = sizes_of_file(measured(tmp_path, (1024, 1536, 2048, 3008), (3, 6, 9)), 4, on_lambda=True)
    assert largest.service_s == pytest.approx([0.07 * 1769 / 3008] * 3 + [0.09 * 1769 / 3008], rel=1e-6)
    assert "Batches of fewer than 3 were not measured" in capsys.readouterr().err
    [*_, alone] = sizes_of_file(measured(tmp_path, (1024, 1536, 2048, 3008), (3, 6, 9)), 1, on_lambda=True)
    assert len(alone.service_s) == 1


@pytest.mark.parametrize("header", ["X-Name: Zoë ☃", "X-Two: lines\nX-Other: 1", "X-Null: a\0b"])
def test_header_that_http_cannot_carry_is_refused(header: str) -> None:
    result = CliRunner().invoke(gnomon, ["invoke", "echo", "-d", "x", "-H", header, "-g", "http://127.0.0.1:9"])
    assert result.exit_code == 2
    assert "a character that no header can have" in result.output
