"""TLS of the listening sockets: certificates that are read again when their files change.

A certificate is renewed every few weeks, while connections are open. New handshakes use the new one; open connections
keep theirs.
"""

from __future__ import annotations

import os
import ssl

import structlog

from gateway.config import ConfigError, ServerSection

LOOK_EVERY = 5.0
"""Seconds between two looks at the files."""

log = structlog.get_logger()


class Certificates:
    """The TLS context of a server.

    Attributes:
        context: for the sockets.

    Args:
        server: names the files.

    Raises:
        ConfigError: a file cannot be read, or the key is not the certificate's.
    """

    def __init__(self, server: ServerSection) -> None:
        assert server.ssl_certfile is not None
        self._certificate, self._key = server.ssl_certfile, server.ssl_keyfile
        self._password_env = server.ssl_keyfile_password_env
        self._authorities = server.ssl_ca_certs
        self._stamps = self._look()
        self.context = self._present = self._load()
        self.context.sni_callback = self._use_present

    def refresh(self) -> None:
        """Read the files again if they have changed. What cannot be read is logged, and the known ones stay in use."""
        if (stamps := self._look()) == self._stamps:
            return
        # Also if they cannot be read: a certificate without its new key is reported once, and tried again when the key
        # has come.
        self._stamps = stamps
        try:
            self._present = self._load()
        except ConfigError as error:
            log.error("certificate.rejected", error=str(error))
        else:
            log.info("certificate.loaded", file=self._certificate)

    def _look(self) -> list[tuple[int, int] | None]:
        """What changes with the files: modification time and inode of each; None: it is not there."""
        stamps: list[tuple[int, int] | None] = []
        for file in (self._certificate, self._key, self._authorities):
            try:
                found = os.stat(file) if file is not None else None
            except OSError:
                found = None
            stamps.append((found.st_mtime_ns, found.st_ino) if found is not None else None)
        return stamps

    def _load(self) -> ssl.SSLContext:
        # A new context each time: one that exists can get more authorities, and lose none.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        _load(context, "ssl_certfile", self._certificate, self._key, self._password)
        if self._authorities is not None:
            # Not CERT_REQUIRED: a client without a certificate is refused with an answer that says so, as nginx does
            # (ngx_http_ssl_module, ssl_verify_client), and health checks need none.
            context.verify_mode = ssl.CERT_OPTIONAL
            # A client that resumes a session shows no certificate: it would outlast its authority.
            context.num_tickets = 0
            context.options |= ssl.OP_NO_TICKET
            try:
                context.load_verify_locations(self._authorities)
            except (OSError, ValueError) as error:
                raise ConfigError(f"server.ssl_ca_certs: {self._authorities}: {_reason(error)}") from None
        return context

    def _use_present(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Have a handshake, which begins with the context of the sockets, go on with that of the present files."""
        connection.context = self._present

    def _password(self) -> str:
        # Without this function OpenSSL would ask at the terminal.
        name = self._password_env
        if name is None:
            raise ConfigError("server.ssl_keyfile is encrypted: name its password's variable, ssl_keyfile_password_env")
        if not (password := os.environ.get(name, "")):
            raise ConfigError(f"server.ssl_keyfile_password_env: the environment variable {name} is not set")
        return password


def _load(context: ssl.SSLContext, key: str, certificate: str, private_key: str | None, password: object) -> None:
    try:
        context.load_cert_chain(certificate, private_key, password)  # type: ignore[arg-type]
    except FileNotFoundError:
        missing = next((each for each in (certificate, private_key) if each and not os.path.exists(each)), certificate)
        raise ConfigError(f"server.{key}: there is no file {missing}") from None
    except (OSError, ValueError) as error:
        files = f"{certificate} and {private_key}" if private_key is not None else certificate
        raise ConfigError(f"server.{key}: {files}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """What OpenSSL or the system says, without its error numbers and source lines."""
    if isinstance(error, ssl.SSLError):
        what = (error.reason or "it is no certificate in PEM form").replace("_", " ").lower()
        return "the key is not the certificate's" if what == "key values mismatch" else what
    return str(getattr(error, "strerror", None) or error)
