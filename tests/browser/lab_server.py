"""JupyterLab, started in a folder and stopped again."""

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab_page import TOKEN, Lab


@contextmanager
def serve(module: list[str], top: Path, environment: dict[str, str]) -> Iterator[Lab]:
    """``python -m`` a module that starts JupyterLab in the folder ``top``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = ["--no-browser", "--port", str(port), "--allow-root", f"--ServerApp.token={TOKEN}"]
    log = top / "server.log"
    with open(log, "wb") as said:
        server = subprocess.Popen(
            [sys.executable, "-m", *module, *flags], cwd=top, env=environment, stdout=said, stderr=said
        )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_for(f"{address}/api?token={TOKEN}", server, log)
        yield Lab(address, top)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(timeout=30)


def _wait_for(url: str, server: "subprocess.Popen[bytes]", log: Path) -> None:
    for _attempt in range(300):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert server.poll() is None, f"JupyterLab ended:\n{log.read_text()[-2000:]}"
            time.sleep(0.2)
    raise AssertionError(f"JupyterLab does not answer:\n{log.read_text()[-2000:]}")
