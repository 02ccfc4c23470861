"""TLS 1.3 between holders of a key: both sides show the certificate in the key, and accept no other."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable

from .errors import AccessRefused
from .keys import Key
from .transports import TlsLink


class Encryption:
    """One side's TLS 1.3 with the certificate of ``key``. Raises ssl.SSLError: OpenSSL cannot use the key."""

    def __init__(self, key: Key, server: bool) -> None:
        self._certificate = key.certificate
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=key.certificate)
        descriptor = os.memfd_create("stretto-plane", os.MFD_CLOEXEC)  # OpenSSL reads keys from files only
        try:
            os.write(descriptor, key.pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        if server:
            context.num_tickets = 0  # nobody resumes a session
        self._context = context
        self._server = server

    def proven(
        self, plain: socket.socket, timeout_s: float, wrapped: Callable[[ssl.SSLSocket], object] = lambda _: None
    ) -> TlsLink:
        """Return a link over ``plain`` to a peer that has shown this very certificate. There is no other way to one:
        handshake and comparison are one step, so that nobody can leave out the comparison.

        ``wrapped`` gets the socket that replaces ``plain`` before the handshake, to end it from another thread.

        Raises AccessRefused, OSError; the socket is then closed.
        """
        link = plain
        try:
            plain.settimeout(timeout_s)
            link = self._context.wrap_socket(plain, server_side=self._server, do_handshake_on_connect=False)
            wrapped(link)
            link.do_handshake()
            if link.getpeercert(binary_form=True) != self._certificate:
                raise AccessRefused("it shows another certificate; give both sides the key of the same job")
        except BaseException:
            link.close()
            raise
        return TlsLink(link)
