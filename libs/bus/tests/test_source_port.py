"""Connections while another program holds every port of the kernel's choice, in a network of the test's own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import asyncio, ctypes, errno, fcntl, os, socket, struct, sys
from stretto_bus.connection import Connection

if ctypes.CDLL(None).unshare(0x40000000 | (0x10000000 if os.getuid() else 0)):  # CLONE_NEWNET, CLONE_NEWUSER
    sys.exit(77)
with socket.socket() as any_socket:  # the loopback interface is down: SIOCSIFFLAGS, IFF_UP
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
open("/proc/sys/net/ipv4/ip_local_port_range", "w").write("60000 60003")
held = []
try:
    while True:
        held.append(socket.socket())
        held[-1].bind(("0.0.0.0", 0))
except OSError as error:
    assert error.errno == errno.EADDRINUSE

async def main():
    async def answer(reader, writer):
        writer.write(b'INFO {"server_id": "a", "version": "2.12.0", "proto": 1, "max_payload": 1048576}\\r\\n')
        while line := await reader.readline():
            if line.startswith(b"PING"):
                writer.write(b"PONG\\r\\n")
    server = await asyncio.start_server(answer, "127.0.0.1", 20_000)
    try:
        await asyncio.open_connection("127.0.0.1", 20_000)
    except OSError as error:
        assert error.errno == errno.EADDRNOTAVAIL
    else:
        raise AssertionError("a port was left")
    connection = Connection()
    await connection.connect("nats://127.0.0.1:20000", connect_timeout=60, max_reconnect_attempts=1)
    print(connection.is_connected)
    await connection.close()

asyncio.run(main())
"""


def test_who_holds_all_ports_of_the_kernels_choice_keeps_nobody_from_the_bus() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    if done.returncode == 77:
        pytest.skip("this user gets no network of his own")
    assert done.stdout.strip() == "True", done.stderr
