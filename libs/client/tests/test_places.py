"""A folder's token goes to the gateway's socket in that folder, and to nobody who has its port."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import shutil
import socket
import threading
from pathlib import Path

import pytest
from both_clients import client_of
from stretto_client.errors import NotRunning, Unusable
from stretto_client.places import place_of
from stretto_runtime.process.listeners import at_path

ME = {
    "name": "ada", "role": "admin", "team": "default", "reads_all_teams": True, "expires_at_s": None,
    "installation": "i", "version": "1",
}  # fmt: skip


def answering(listener: socket.socket) -> queue.Queue[bytes]:
    """Answer one request, as a gateway does, and listen no longer; returns what was asked."""
    asked, body = queue.Queue[bytes](), json.dumps(ME).encode()

    def answer() -> None:
        with listener, listener.accept()[0] as link:
            asked.put(link.recv(65536))
            link.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    threading.Thread(target=answer, daemon=True).start()
    return asked


def test_a_folder_whose_token_is_a_link_is_not_believed(tmp_path: Path) -> None:
    """Method: a job that may write where the command is called has laid a folder there, with a socket of its own."""
    (own := tmp_path / "own").mkdir()
    (own / "gateway.token").write_text("secret\n")
    (run := tmp_path / ".stretto" / "run").mkdir(parents=True)
    (run / "gateway.json").write_text('{"host": "127.0.0.1", "port": 7}')
    at_path(run / "gateway.sock").close()
    (laid := tmp_path / ".stretto" / "gateway.token").symlink_to(own / "gateway.token")
    with pytest.raises(Unusable, match="is a link"):
        place_of(folder=tmp_path / ".stretto", environ={})
    laid.unlink()
    assert place_of(folder=tmp_path / ".stretto", environ={}).token == ""
    os.mkfifo(laid)
    assert place_of(folder=tmp_path / ".stretto", environ={}).token == ""


def test_who_comes_to_a_full_socket_waits_its_turn(kind: str, loop: asyncio.AbstractEventLoop, tmp_path: Path) -> None:
    """Method: the gateway is being started again, and others have filled its queue."""
    (run := tmp_path / "run").mkdir()
    (run / "gateway.json").write_text(json.dumps({"host": "127.0.0.1", "port": 1}))
    listener = at_path(run / "gateway.sock")
    listener.listen(1)
    before = [socket.socket(socket.AF_UNIX) for _ in range(2)]  # one more than listen() was told
    for each in before:
        each.connect(str(run / "gateway.sock"))

    def begin() -> None:
        for _ in before:
            listener.accept()[0].close()
        answering(listener)

    threading.Timer(0.3, begin).start()
    client = client_of(kind, loop, place_of(folder=tmp_path, environ={}))
    assert client.me().name == "ada"
    client.close()
    for each in before:
        each.close()


def test_who_has_the_port_of_a_folders_gateway_is_sent_nothing(
    kind: str, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    """Method: a stranger listens at the port that the folder names, with and without TLS. The gateway's socket, by a
    longer path than the kernel takes, is answered; then it is nobody's, no socket, and gone."""
    folder = tmp_path / ("x" * 100)
    (run := folder / "run").mkdir(parents=True)
    (folder / "gateway.token").write_text("secret\n")
    path = run / "gateway.sock"
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        for scheme in ("http", "https"):
            at = {"scheme": scheme, "host": "127.0.0.1", "port": stranger.getsockname()[1]}
            (run / "gateway.json").write_text(json.dumps(at))
            asked = answering(at_path(path))
            client = client_of(kind, loop, place_of(folder=folder, environ={}))
            assert client.me().name == "ada"
            client.close()
            assert b"authorization: bearer secret" in asked.get(timeout=60).lower()
        for worse in (lambda: None, path.unlink, lambda: path.write_text(""), lambda: shutil.rmtree(run)):
            worse()
            with pytest.raises(NotRunning, match="no gateway"):
                client_of(kind, loop, place_of(folder=folder, environ={})).me()
        stranger.setblocking(False)
        with pytest.raises(BlockingIOError):
            stranger.accept()
