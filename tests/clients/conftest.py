"""Starts the real server with folders of its own for the tests of client libraries.

HEADSTART_BIN           the binary (needed)
HEADSTART_STARTER_GGUF  the starter model; else it is looked for in HEADSTART_MODEL_DIR, else where the app keeps it
"""

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest

STARTER = "HuggingFaceTB/SmolLM2-135M-Instruct.Q4_1"


def starter_file() -> Path:
    if named := os.environ.get("HEADSTART_STARTER_GGUF"):
        return Path(named)
    if folder := os.environ.get("HEADSTART_MODEL_DIR"):
        return Path(folder) / f"{STARTER}.gguf"
    if sys.platform == "darwin":
        data = Path.home() / "Library/Application Support/ai.headstart.Headstart"
    else:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "headstart"
    return data / "models" / f"{STARTER}.gguf"


@pytest.fixture(scope="session")
def binary() -> Path:
    named = os.environ.get("HEADSTART_BIN")
    if not named:
        pytest.skip("HEADSTART_BIN does not name the server's binary")
    path = Path(named)
    assert path.is_file(), f"HEADSTART_BIN is {path}, which is not there"
    return path


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory) -> Path:
    """A folder with nothing but the starter model."""
    starter = starter_file()
    if not starter.is_file():
        pytest.skip(f"no starter model at {starter} (make starter)")
    root = tmp_path_factory.mktemp("models")
    link = root / f"{STARTER}.gguf"
    link.parent.mkdir()
    link.symlink_to(starter.resolve())
    return root


@pytest.fixture(scope="session")
def serve(binary, model_dir, tmp_path_factory):
    """A function that starts a server and gives its base URL while the `with` block lasts."""

    @contextmanager
    def start(*arguments: str):
        home = tmp_path_factory.mktemp("home")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HEADSTART_", "XDG_"))}
        env["HOME"] = str(home)
        log = (home / "log").open("wb")
        command = [binary, "serve", "--port", "0", "--device", "cpu", "--exit-with-stdin", "--model-dir", model_dir, *arguments]
        server = subprocess.Popen(command, cwd=home, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        try:
            line = server.stdout.readline().decode()
            assert "http://" in line, (home / "log").read_text()
            yield "http://" + line.split("http://")[1].strip()
            assert server.poll() is None, f"the server ended: {(home / 'log').read_text()}"
            assert "panicked" not in (home / "log").read_text()
        finally:
            server.kill()
            server.wait()
            server.stdin.close()
            server.stdout.close()
            log.close()

    return start


def connect(url: str, key: str = "none") -> openai.OpenAI:
    """The library as an app uses it, but without proxies and retries."""
    transport = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=300, http_client=transport)


@pytest.fixture(scope="session")
def url(serve):
    with serve() as url:
        yield url


@pytest.fixture
def client(url):
    with connect(url) as client:
        yield client


@pytest.fixture
def health(url):
    """What `/health` says now."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask() -> dict:
        with direct.open(f"{url}/health") as reply:
            return json.load(reply)

    return ask


@pytest.fixture(scope="session")
def model() -> str:
    return STARTER
