"""Fetching from a hub: the real client against a server of this machine that answers as the hub does."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from backend import models
from backend.errors import Cancelled, UserError, WorkFailed

COMMIT = "0" * 40
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"a pickle",
    "modeling_own.py": b"raise SystemExit",
}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Let the hub hold one repository of these files; a file that is None is begun and never sent to its end."""
    monkeypatch.setenv("PIVOTSCOPE_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    servers: list[ThreadingHTTPServer] = []
    over = threading.Event()

    def start(files: dict[str, bytes | None]) -> None:
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler(files, over))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")

    yield start
    over.set()
    for server in servers:
        server.shutdown()
        server.server_close()


def handler(files: dict[str, bytes | None], over: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Hub(BaseHTTPRequestHandler):
        def answer(self, content: bytes | None, kind: str = "application/octet-stream") -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(1 << 20 if content is None else len(content)))
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hash(self.path) & 0xFFFF}"')
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(bytes(1000) if content is None else content)
            if content is None:
                self.wfile.flush()
                over.wait(60)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path.startswith("/api/models/nobody/small/tree/"):
                tree = [{"type": "file", "path": name, "size": len(files[name] or b""), "oid": "0"} for name in files]
                self.answer(json.dumps(tree).encode(), "application/json")
            elif path.startswith("/api/models/nobody/small"):
                listed = [{"rfilename": name} for name in files]
                document = {"id": "nobody/small", "sha": COMMIT, "siblings": listed, "tags": [], "private": False}
                self.answer(json.dumps(document).encode(), "application/json")
            elif path.startswith("/nobody/small/resolve/") and path.rpartition("/")[2] in files:
                self.answer(files[path.rpartition("/")[2]])
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return Hub


def test_weights_come_without_pickles_and_code(serve: Callable[..., None], tiny_weights: bytes) -> None:
    serve({**FILES, "model.safetensors": tiny_weights})
    seen: list[str] = []
    model = models.fetch("nobody/small", lambda what, _share: seen.append(what))
    folder = Path(str(model.path))
    names = {path.name for path in folder.iterdir() if path.is_file()}
    assert names == {"config.json", "tokenizer.json", "model.safetensors", models.CARD}
    assert (model.name, model.source, model.parameters) == ("nobody--small", "hub nobody/small", 6)
    assert seen[0].startswith("downloading nobody/small, 0 MB so far")
    assert models.locate("nobody--small") == model


def test_a_cancelled_download_is_no_model(serve: Callable[..., None]) -> None:
    serve({**FILES, "model.safetensors": None})

    def cancel(what: str, _share: float | None) -> None:
        if any(path.name == "config.json" for path in models.library_folder().rglob("*")):
            raise Cancelled("stopped")

    with pytest.raises(Cancelled):
        models.fetch("nobody/small", cancel)
    assert not [child for child in psutil.Process().children() if "backend.hub" in child.cmdline()]
    assert models.locate("nobody--small") is None
    assert "nobody--small" not in {model.name for model in models.list_models()}


def test_a_repository_without_weights_is_refused(serve: Callable[..., None]) -> None:
    serve(FILES)
    with pytest.raises(UserError, match=r"holds no \.safetensors weights; pickled weights are not loaded"):
        models.fetch("nobody/small")


def test_a_repository_that_is_not_there_is_one_sentence(serve: Callable[..., None]) -> None:
    serve(FILES)
    with pytest.raises(WorkFailed) as caught:
        models.fetch("nobody/other")
    assert str(caught.value) == (
        "nobody/other could not be fetched from the hub (it has no such repository, or a private or gated one; "
        "check the name, or run `hf auth login`)"
    )


def test_a_hub_that_does_not_answer_is_one_sentence(
    serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(WorkFailed) as caught:
        models.fetch("nobody/small")
    said = str(caught.value)
    assert said.startswith("nobody/small could not be fetched from the hub (it does not answer: ")
    assert said.endswith("; check the network, or give a folder with a checkpoint)")
    assert "refused" in said


@pytest.fixture
def tiny_weights(tmp_path: Path) -> bytes:
    import torch
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(2, 3)}, tmp_path / "weights.safetensors")
    return (tmp_path / "weights.safetensors").read_bytes()
