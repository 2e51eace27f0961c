"""Models of a Hugging Face hub: named by their page's address, downloaded by the hub's own library, without code and pickles.

No hub can be reached from a test. The server here speaks the four routes that the library uses, from a folder.
"""

from __future__ import annotations

import hashlib
import http
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest
import transformers

from gnomon_core.errors import GnomonError
from gnomon_profiler import add_from
from gnomon_profiler.importing.hub import HubModel, download, parse_address
from gnomon_profiler.repository import DirectoryRepository
from tests.small_transformers import bert_config

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = "tiny/reviews"


@dataclass
class Hub:
    """A server with one model, whose files are in a folder; `asked` are the requests so far, `tokens` their logins."""

    folder: Path
    url: str = ""
    break_after: int | None = None
    asked: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{self.url}/{MODEL}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    config = bert_config(num_labels=3, num_hidden_layers=1)
    transformers.BertForSequenceClassification(config).save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "README.md").write_text("nobody needs it")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    served = Hub(tmp_path / "saved")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.asked.append(f"{self.command} {self.path}")
            served.tokens.append(self.headers.get("Authorization", ""))
            if self.path.startswith(f"/api/models/{MODEL}/revision/"):
                siblings = [{"rfilename": path.name} for path in sorted(served.folder.iterdir())]
                document = {"id": MODEL, "sha": COMMIT, "siblings": siblings}
                if not self.path.endswith("/missing"):
                    return self._answer(json.dumps(document).encode(), {"Content-Type": "application/json"})
            prefix = f"/{MODEL}/resolve/{COMMIT}/"
            path = served.folder / self.path.removeprefix(prefix)
            if self.path.startswith(prefix) and path.is_file():
                data = path.read_bytes()
                return self._answer(data, {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": COMMIT})
            return self._answer(b"", {"X-Error-Code": "RepoNotFound"}, http.HTTPStatus.NOT_FOUND)

        do_HEAD = do_GET  # noqa: N815 - the base class names it so

        def _answer(self, data: bytes, headers: dict[str, str], status: http.HTTPStatus = http.HTTPStatus.OK) -> None:
            begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
            self.send_response(http.HTTPStatus.PARTIAL_CONTENT if begin else status)
            for name, value in (headers | {"Content-Length": str(len(data) - begin), "Accept-Ranges": "bytes"}).items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            if served.break_after is not None and len(data) > served.break_after:
                self.wfile.write(data[begin : begin + served.break_after])
                self.close_connection = True
                return
            self.wfile.write(data[begin:])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("address", "model"),
    [
        ("https://huggingface.co/google/bert", HubModel("https://huggingface.co", "google/bert")),
        ("https://huggingface.co/gpt2", HubModel("https://huggingface.co", "gpt2")),
        ("https://huggingface.co/a/b/tree/v1.0", HubModel("https://huggingface.co", "a/b", "v1.0")),
        ("https://huggingface.co/a/b/tree/refs%2Fpr%2F3", HubModel("https://huggingface.co", "a/b", "refs/pr/3")),
        ("http://mirror.local:8080/hub/a/b/", HubModel("http://mirror.local:8080/hub", "a/b")),
    ],
)
def test_address_of_a_models_page_names_hub_model_and_revision(address: str, model: HubModel) -> None:
    assert parse_address(address) == model


@pytest.mark.parametrize(
    "address",
    [
        "https://",
        "https://huggingface.co",
        "https://huggingface.co/a//b",
        "https://huggingface.co/a/b/tree/",
        "https://huggingface.co/a/b?x=1",
        "https://user:secret@huggingface.co/a/b",
        "https://huggingface.co/a/b.onnx",
        "https://[::1/a/b",
    ],
)
def test_address_of_something_else_is_refused(address: str) -> None:
    with pytest.raises(GnomonError) as caught:
        parse_address(address)
    assert (caught.value.status, caught.value.code) == (400, "invalid_source")


@pytest.mark.timeout(300)
def test_model_of_a_hub_is_downloaded_once_and_added(hub: Hub, tmp_path: Path) -> None:
    steps: list[str] = []
    entry = add_from(DirectoryRepository(tmp_path / "models"), "reviews", hub.address, length=16, progress=steps.append)
    assert [spec.name for spec in entry.signature.inputs] == ["input_ids", "attention_mask"]
    assert entry.signature.details["weights"] == f"from {hub.address} at {COMMIT}"
    assert "reviews: downloading model.safetensors (2 of 2)" in steps
    assert not [line for line in hub.asked if "README" in line], "only what the model is made of is downloaded"
    sent = [line for line in hub.asked if line.startswith("GET") and "resolve" in line]
    download(hub.address)
    assert [line for line in hub.asked if line.startswith("GET") and "resolve" in line] == sent


def test_interrupted_download_goes_on_where_it_was(hub: Hub) -> None:
    hub.break_after = 10_000
    with pytest.raises(GnomonError) as caught:
        download(hub.address)
    assert (caught.value.status, caught.value.code) == (502, "hub_unreachable")
    hub.break_after = None
    folder = download(hub.address)
    whole = (hub.folder / "model.safetensors").read_bytes()
    assert (folder / "model.safetensors").read_bytes() == whole


def test_login_of_another_hub_is_not_sent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    download(hub.address)
    assert set(hub.tokens) == {""}
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    download(hub.address)
    assert "Bearer hf_secret" in hub.tokens


def test_pickled_weights_of_a_hub_are_refused_before_anything_is_downloaded(hub: Hub) -> None:
    (hub.folder / "model.safetensors").rename(hub.folder / "pytorch_model.bin")
    with pytest.raises(GnomonError) as caught:
        download(hub.address)
    assert (caught.value.status, caught.value.code) == (400, "unsafe_source")
    assert not [line for line in hub.asked if "resolve" in line]


@pytest.mark.parametrize("path", ["nobody/nothing", f"{MODEL}/tree/missing"])
def test_model_that_the_hub_does_not_show_is_not_found(hub: Hub, path: str) -> None:
    with pytest.raises(GnomonError) as caught:
        download(f"{hub.url}/{path}")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
    assert "HF_TOKEN" in caught.value.hint


def test_hub_that_cannot_be_reached_is_named(hub: Hub) -> None:
    with pytest.raises(GnomonError) as caught:
        download("http://127.0.0.1:9/a/b")
    assert (caught.value.status, caught.value.code) == (502, "hub_unreachable")
