"""Keys, handshakes and crowds of strangers, on real sockets."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace as Way

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from stretto_plane import AccessRefused, Buffer, Connection, Key, Listener, Message, Peer, PeerLost, PlaneError
from stretto_plane import listener as listener_module
from stretto_plane import session as session_module

Listen = Callable[..., Listener]
SECRET = b"a secret of an installation, 32 B"
STORED = b"""\
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIOFvXZJ9EZQchIsidVC6gtWiFyc0WO39De2gMCkFteYN
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIHzMIGmoAMCAQICAQEwBQYDK2VwMBgxFjAUBgNVBAMMDXN0cmV0dG8tcGxhbmUw
IBcNMjAwMTAxMDAwMDAwWhgPOTk5OTEyMzEyMzU5NTlaMBgxFjAUBgNVBAMMDXN0
cmV0dG8tcGxhbmUwKjAFBgMrZXADIQCw4+yWmp3m3p3GtMusvZF2YfKGGTK5pUTG
zQ6evVx4aaMTMBEwDwYDVR0TAQH/BAUwAwEB/zAFBgMrZXADQQClxahDj5Vikxx6
McXUWvePPfYdyMbB051qjxFsc8D3VeXCdKItUZvBzNNhDBFDqEAcOIWrLAv0mB10
C2NLlf4B
-----END CERTIFICATE-----
"""
"""Key file of the job wide-deep that the first release of the plane derives from SECRET."""


def echo(message: Message, _: Peer) -> tuple[int, Sequence[Buffer]]:
    return message.kind + 1, message.parts


def wait_until(holds: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.005)


def raw(listener: Listener) -> socket.socket:
    """Connect without a word."""
    if listener.address.startswith("unix:"):
        link = socket.socket(socket.AF_UNIX)
        link.connect(listener.address.removeprefix("unix:"))
    else:
        host, _, port = listener.address.rpartition(":")
        link = socket.create_connection((host, int(port)))
    link.settimeout(20)
    return link


def ended(link: socket.socket) -> bool:
    """Read to the end; True if the other side has ended the connection."""
    try:
        while link.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def talks(context: ssl.SSLContext, plain: socket.socket) -> bool:
    """Return True if the other side answers in TLS."""
    try:
        with context.wrap_socket(plain) as link:
            link.sendall(b"STPL" + bytes(44))
            return link.recv(1) != b""
    except (ssl.SSLError, ConnectionError):
        return False


def test_a_key_is_the_same_wherever_it_is_derived(key: Key, tmp_path: Path) -> None:
    """Goal: every replica of an issuer lays the same file; a release with another digest would lock pods out."""
    command = "import sys; from stretto_plane import Key; sys.stdout.buffer.write(Key.derive(%r, 'wide-deep').pem)"
    other = subprocess.run([sys.executable, "-c", command % SECRET], capture_output=True, check=True)
    assert other.stdout == key.pem == STORED
    digest = hashlib.sha256(Key.derive(bytes(range(32)), "jöb").pem).hexdigest()
    assert digest == "77d3db574dc4e92ce31d73fb43b2b0dffeca975268b0f2b96a4a0bdc7b7d39bc"
    path = tmp_path / "plane.pem"
    path.write_bytes(key.pem)
    assert Key.load(path) == key
    others = {Key.derive(SECRET, "wide-deep-2").pem, Key.derive(SECRET + b"x", "wide-deep").pem, Key.random().pem}
    assert len({key.pem, *others}) == 4


def test_a_stored_key_proves_itself_as_ever() -> None:
    """Goal: pods of two releases, which were given the same key file, serve each other."""
    proof = Key.of(STORED).proof(b"server", bytes(range(64)))
    assert proof.hex() == "0b306fc081936051d87819e09e720a4c875bb11dd46830c041f69572a4cfbb23"


def test_its_certificate_is_well_formed(key: Key) -> None:
    certificate = x509.load_pem_x509_certificate(key.pem)
    certificate.verify_directly_issued_by(certificate)
    assert certificate.serial_number == 1
    assert certificate.not_valid_after_utc.year == 9999


def test_a_key_shows_nothing_of_itself(key: Key, tmp_path: Path) -> None:
    private = key.pem.split(b"\n")[1].decode()
    assert private not in repr(key)
    broken, other = tmp_path / "broken.pem", Key.random()
    broken.write_bytes(key.pem.replace(b"CERTIFICATE", b"CERTIFICATION"))
    with pytest.raises(PlaneError, match=r"broken\.pem") as raised:
        Key.load(broken)
    assert private not in str(raised.value)
    mixed = key.pem.partition(b"-----BEGIN CERT")[0] + b"-----BEGIN CERT" + other.pem.partition(b"-----BEGIN CERT")[2]
    for content in (mixed, b"", key.pem + bytes(1 << 14), key.pem.replace(b"MIHz", b"MIHy")):
        with pytest.raises(PlaneError, match=f"key of {len(content)} bytes is refused"):
            Key.of(content)
    with pytest.raises(PlaneError, match=r"none\.pem.*cannot be read"):
        Key.load(tmp_path / "none.pem")
    with pytest.raises(PlaneError, match="secret of 5 bytes") as raised:
        Key.derive(b"12345", "job")
    assert "12345" not in str(raised.value)


def test_another_key_is_refused_by_both_sides(way: Way, key: Key, listen: Listen) -> None:
    listener = listen(echo, way.address, encrypted=way.encrypted)
    with pytest.raises(AccessRefused, match="key"):
        Connection(listener.address, Key.random(), timeout_s=60, encrypted=way.encrypted)
    wait_until(lambda: listener.counts.refused_peers == 1)
    with Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted) as connection:
        assert connection.call(1, []).kind == 2
    assert listener.counts.connections == 1


def test_a_server_without_the_key_learns_and_proves_nothing(key: Key) -> None:
    """Method: an impostor that reflects whatever it gets."""
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def reflect() -> None:
            link, _ = impostor.accept()
            with link:
                sent = link.recv(1 << 12)
                link.sendall(b"STPL\x01\x00\x00" + bytes(9) + sent[-32:] + sent[-32:])
                received.append(link.recv(1 << 12))

        received: list[bytes] = []
        thread = threading.Thread(target=reflect)
        thread.start()
        with pytest.raises(AccessRefused, match="another key"):
            Connection(f"127.0.0.1:{impostor.getsockname()[1]}", key, timeout_s=60)
        thread.join()
    assert received == [b""]


def test_a_recorded_handshake_is_of_no_use(key: Key, listen: Listen) -> None:
    """Method: what an honest client sent, by a proxy, is sent again."""
    listener = listen(echo)
    sent: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def forward() -> None:
            inner, _ = proxy.accept()
            outer = raw(listener)
            for size in (80, 32, 1 << 16):
                sent.append(inner.recv(1 << 16))
                outer.sendall(sent[-1])
                inner.sendall(outer.recv(size))
            inner.close()
            outer.close()

        thread = threading.Thread(target=forward)
        thread.start()
        with Connection(f"127.0.0.1:{proxy.getsockname()[1]}", key, timeout_s=60) as connection:
            assert connection.call(1, []).kind == 2
        thread.join()
    with raw(listener) as replay:
        for each in sent:
            try:
                replay.sendall(each)
                time.sleep(0.05)
            except ConnectionError:
                break
        assert ended(replay)
    wait_until(lambda: listener.counts.refused_peers == 1)
    assert listener.counts.requests == 1


@pytest.mark.parametrize("required", [True, False])
def test_encryption_has_to_be_the_same_on_both_sides(key: Key, listen: Listen, required: bool) -> None:
    listener = listen(echo, encrypted=required)
    with pytest.raises(AccessRefused, match="STRETTO_PLANE_ENCRYPTED"):
        Connection(listener.address, key, timeout_s=60, encrypted=not required)
    assert listener.counts.connections == 0


def test_nothing_travels_in_the_clear_with_encryption(key: Key, listen: Listen) -> None:
    """Method: a proxy looks for the request and the answer."""
    listener = listen(lambda *_: (0, [b"answer " * 1000]), encrypted=True)
    seen = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def forward() -> None:
            inner, _ = proxy.accept()
            outer = raw(listener)

            def pump(source: socket.socket, sink: socket.socket) -> None:
                while data := source.recv(1 << 16):
                    seen.extend(data)
                    sink.sendall(data)
                with contextlib.suppress(OSError):
                    sink.shutdown(socket.SHUT_WR)

            back = threading.Thread(target=pump, args=(outer, inner))
            back.start()
            pump(inner, outer)
            back.join()

        thread = threading.Thread(target=forward)
        thread.start()
        with Connection(f"127.0.0.1:{proxy.getsockname()[1]}", key, timeout_s=60, encrypted=True) as connection:
            assert bytes(connection.call(1, [b"question " * 1000]).parts[0]) == b"answer " * 1000
        thread.join()
    assert len(seen) > 16_000
    for shown in (b"question ", b"answer ", b"STPL", b"STPF"):
        assert shown not in seen


def test_older_encryption_and_no_certificate_are_refused(key: Key, listen: Listen) -> None:
    listener = listen(echo, encrypted=True)
    for maximum in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = maximum
        assert not talks(context, raw(listener))
    wait_until(lambda: listener.counts.refused_peers == 2)


def test_a_certificate_that_the_key_has_signed_is_not_the_keys(key: Key, listen: Listen, tmp_path: Path) -> None:
    """Goal: both sides compare the certificate itself. Method: a peer with another one, which OpenSSL would accept."""
    leaf, file = Ed25519PrivateKey.generate(), tmp_path / "leaf.pem"
    authority, signer = x509.load_pem_x509_certificate(key.pem), load_pem_private_key(key.pem, None)
    assert isinstance(signer, Ed25519PrivateKey)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leaf")])
    builder = x509.CertificateBuilder(authority.subject, name, leaf.public_key(), 2)
    builder = builder.not_valid_before(authority.not_valid_before_utc).not_valid_after(authority.not_valid_after_utc)
    shown = builder.sign(signer, None).public_bytes(Encoding.PEM)
    file.write_bytes(leaf.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + shown)
    contexts = [ssl.SSLContext(each) for each in (ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER)]
    for context in contexts:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(file)
    listener = listen(echo, encrypted=True)
    assert not talks(contexts[0], raw(listener))
    wait_until(lambda: listener.counts.refused_peers == 1)
    with socket.create_server(("127.0.0.1", 0)) as impostor:

        def serve() -> None:
            with contextlib.suppress(ssl.SSLError, ConnectionError), impostor.accept()[0] as plain:
                served.append(contexts[1].wrap_socket(plain, server_side=True).recv(1))

        served: list[bytes] = []
        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(AccessRefused, match="another certificate"):
            Connection(f"127.0.0.1:{impostor.getsockname()[1]}", key, timeout_s=60, encrypted=True)
        thread.join()
    assert served in ([], [b""])


def test_strangers_get_little_time_and_room(
    way: Way, key: Key, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silent ones, one that sends a byte at a time, and one that sends without end; who has the key is served."""
    monkeypatch.setattr(session_module, "HANDSHAKE_S", 0.5)
    listener = listen(echo, way.address, encrypted=way.encrypted)
    silent = [raw(listener) for _ in range(5)]
    trickling, flooding = raw(listener), raw(listener)
    begun_s = time.monotonic()
    flood = 0
    try:
        while time.monotonic() - begun_s < 5:
            trickling.sendall(b"S" if not way.encrypted else b"\x16")
            flood += flooding.send(bytes(1 << 12))
            time.sleep(0.02)
    except OSError:
        pass
    monkeypatch.undo()  # on a slow machine, who has the key needs more
    with Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted) as connection:
        assert connection.call(1, []).kind == 2
    assert all(ended(link) for link in (*silent, trickling, flooding))
    wait_until(lambda: listener.counts.refused_peers == 7)
    assert time.monotonic() - begun_s < 30


def test_a_crowd_of_strangers_does_not_shut_out_who_has_the_key(key: Key, listen: Listen) -> None:
    listener = listen(echo)
    strangers = [raw(listener) for _ in range(listener_module.STRANGERS_MAX * 3)]
    with Connection(listener.address, key, timeout_s=60) as connection:
        assert connection.call(1, []).kind == 2
    assert all(ended(link) for link in strangers[: listener_module.STRANGERS_MAX])
    assert threading.active_count() < 3 * listener_module.STRANGERS_MAX


def test_a_crowd_has_no_more_threads_than_strangers_may_be(
    key: Key, listen: Listen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: threads that take a while to end, as on a busy machine; one that is shut counts until it has ended."""
    run, lock, numbers, living = session_module.Session.run, threading.Lock(), [], [0]

    def run_and_dally(session: session_module.Session) -> None:
        with lock:
            living[0] += 1
            numbers.append(living[0])
        run(session)
        time.sleep(0.005)
        with lock:
            living[0] -= 1

    monkeypatch.setattr(session_module.Session, "run", run_and_dally)
    listener = listen(echo)
    strangers = [raw(listener) for _ in range(listener_module.STRANGERS_MAX * 4)]
    wait_until(lambda: len(numbers) == len(strangers))
    assert max(numbers) == listener_module.STRANGERS_MAX
    with Connection(listener.address, key, timeout_s=60) as connection:
        assert connection.call(1, []).kind == 2
    for stranger in strangers:
        stranger.close()


def test_connections_are_bounded(way: Way, key: Key, listen: Listen) -> None:
    listener = listen(echo, way.address, encrypted=way.encrypted, connections_max=2)
    open_ = [Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted) for _ in range(2)]
    with pytest.raises(AccessRefused, match="connections_max"):
        Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted)
    open_.pop().close()

    def admitted() -> bool:
        try:
            open_.append(Connection(listener.address, key, timeout_s=60, encrypted=way.encrypted))
        except AccessRefused:
            return False
        return True

    wait_until(admitted)
    assert all(each.call(1, []).kind == 2 for each in open_)
    for each in open_:
        each.close()


def test_no_free_descriptor_passes(key: Key, listen: Listen) -> None:
    """Goal: the loop that accepts outlives EMFILE. Method: this process may open no further descriptor for a while."""
    listener = listen(echo)
    first = Connection(listener.address, key, timeout_s=60)
    waiting = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
    try:
        host, _, port = listener.address.rpartition(":")
        waiting.connect((host, int(port)))
        for _ in range(5):
            assert first.call(1, []).kind == 2
            time.sleep(0.05)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with waiting, Connection(listener.address, key, timeout_s=60) as connection:
        assert connection.call(1, []).kind == 2
    first.close()


def test_no_thread_for_a_connection_passes(key: Key, listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = listen(echo)
    with monkeypatch.context() as patched:

        def start(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(PeerLost):
            Connection(listener.address, key, timeout_s=60)
    with Connection(listener.address, key, timeout_s=60) as connection:
        assert connection.call(1, []).kind == 2


def test_a_long_path_is_served(key: Key, listen: Listen, tmp_path: Path) -> None:
    folder = tmp_path / ("folder" * 20) / ("deeper" * 20)
    folder.mkdir(parents=True)
    path = folder / "plane.sock"
    listener = listen(echo, f"unix:{path}")
    assert listener.address == f"unix:{path}"
    with Connection(listener.address, key, timeout_s=60) as connection:
        assert connection.call(1, []).kind == 2
    listener.close()
    assert not path.exists()
    with pytest.raises(PlaneError, match=r"address=.*107.*shorter"):
        Listener(f"unix:{folder}/{'name' * 30}", echo, key, size_bytes_max=1)


def test_socket_files_are_private_and_replaced_when_stale(key: Key, listen: Listen, tmp_path: Path) -> None:
    path = tmp_path / "plane"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))  # and never removed
    listener = listen(echo, f"unix:{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(PlaneError, match="somebody listens there"):
        Listener(f"unix:{path}", echo, key, size_bytes_max=1)
    with Connection(listener.address, key, timeout_s=60) as connection:
        assert connection.call(1, []).kind == 2
    os.unlink(path)
    successor = listen(echo, f"unix:{path}")
    listener.close()
    assert path.exists(), "a listener must not remove the socket of its successor"
    successor.close()
    path.write_text("data")
    with pytest.raises(PlaneError, match="no socket"):
        Listener(f"unix:{path}", echo, key, size_bytes_max=1)
    assert path.read_text() == "data"
