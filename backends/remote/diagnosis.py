"""Why a server is not reached, or does not answer as it should: for the log, with the option to set.

The texts hold addresses and names of files, so clients never get them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from backends.remote.options import RemoteOptions
from backends.transport import Response
from schemas.errors import BackendError, Fault, GatewayError

_UNTRUSTED = {18, 19, 20, 21}  # OpenSSL's X509_V_ERR_*: self-signed, unknown issuer
_EXPIRED = {9, 10}
_WRONG_NAME = {62, 64}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Explains failures on the way to one server.

    Attributes:
        options: of the backend.
        proxy: the URL of the proxy, without a password; "" if there is none.
    """

    options: RemoteOptions
    proxy: str = ""

    def of_error(self, error: GatewayError) -> str:
        """Why there was no answer, and what to set."""
        import httpx  # it is imported where a server is asked, and this module where options are checked, too

        causes = [*_chain(error)]
        for cause in causes:
            # These two are steps of a handshake and no failures.
            if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLWantReadError | ssl.SSLWantWriteError):
                return self._of_tls(cause)
        # The last one is the operating system's; those before it repeat it in the words of libraries.
        for cause in reversed(causes):
            if isinstance(cause, httpx.ProxyError):
                return f"the proxy {self.proxy} refused: {cause}; set `proxy` (user and password belong into its URL)"
            if isinstance(cause, OSError) and not isinstance(cause, TimeoutError | ConnectionResetError | ssl.SSLError):
                return self._of_system(cause)
            if isinstance(cause, httpx.ConnectError) and str(cause):
                return f"{self._where}: {cause}{self._proxy_hint}"
        return self._of_fault(error)

    def of_answer(self, response: Response) -> str | None:
        """Why an answer to a health check is not what it should be; None for a 2xx that is no web page."""
        status, location = response.status, response.header("location")
        if 200 <= status < 300:
            is_page = (response.header("content-type") or "").startswith("text/html")
            return "it answers with a web page (text/html): is `url` right?" if is_page else None
        if 300 <= status < 400:
            return f"it redirects to {location or 'nowhere'} ({status}): set `url` to where it serves"
        if status in (401, 403):
            given = f"the key in {', '.join(self.options.key_variables)}" if self.options.key_variables else "no key"
            return f"it refuses {given} ({status}): set `api_key_env`, and `key_header` if the key has its own header"
        if status == 407:
            return f"the proxy {self.proxy} wants a user and a password (407): they belong into the URL of `proxy`"
        if status in (404, 405):
            return f"it has no such path ({status}): is `url` right? For the OpenAI kinds it ends in /v1"
        return f"it answers {status}"

    @property
    def _where(self) -> str:
        if self.options.unix_socket is not None:
            return f"the socket {self.options.unix_socket}"
        parts = urlsplit(self.options.url)
        return f"the proxy {self.proxy}" if self.proxy else parts.netloc

    @property
    def _proxy_hint(self) -> str:
        if not self.proxy:
            return ""
        host = urlsplit(self.options.url).hostname
        return f'; set `proxy`, or `proxy = "direct"`, or NO_PROXY={host}'

    @property
    def _certificate_hint(self) -> str:
        if self.options.client_cert is not None:
            return "it may not accept the `client_cert`"
        return "if it asks for a client's certificate, set `client_cert` and `client_key`"

    def _of_tls(self, error: ssl.SSLError) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            code, why = error.verify_code, error.verify_message
            if code in _UNTRUSTED:
                hint = "name the certificate of its authority in `extra_ca_file` (or `ca_file`)"
            elif code in _WRONG_NAME:
                hint = "use a name of the certificate in `url`"
            elif code in _EXPIRED:
                hint = "the server needs a valid certificate"
            else:
                hint = "see `extra_ca_file` and `ca_file`"
            return f"{self._where}: its certificate is not accepted: {why}; {hint}"
        reason = error.reason or str(error)
        is_closed = isinstance(error, ssl.SSLZeroReturnError)  # without an alert (TLS 1.2, Python 3.11.2)
        if is_closed or any(word in reason for word in ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "UNEXPECTED_EOF")):
            return f"{self._where}: TLS: {reason}; {self._certificate_hint}"
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
            return f"{self._where}: it does not speak TLS ({reason}): is it http:// in `url`?"
        if "ALERT" in reason:
            return f"{self._where}: TLS: {reason}; {self._certificate_hint}"
        return f"{self._where}: TLS: {reason}"

    def _of_system(self, error: OSError) -> str:
        if isinstance(error, socket.gaierror):
            return f"{self._where}: the name is not known ({error.strerror}){self._proxy_hint}"
        if isinstance(error, ConnectionRefusedError):
            return f"{self._where}: nothing listens there (connection refused){self._proxy_hint}"
        if isinstance(error, FileNotFoundError):
            return f"{self._where}: there is no such file"
        return f"{self._where}: {error.strerror or error}{self._proxy_hint}"

    def _of_fault(self, error: GatewayError) -> str:
        fault = error.fault if isinstance(error, BackendError) else None
        timeout = f"{self.options.timeouts.connect:g} s (`timeouts.connect`)"
        is_secure = self.options.url.startswith("https:")
        other = "is it http:// in `url`?" if is_secure else "is it https:// in `url`, or another server?"
        text = {
            Fault.CONNECT: f"no connection within {timeout}{self._proxy_hint}",
            Fault.TIMEOUT: f"it accepts connections and does not answer: {other}",
            Fault.RESET: f"it closes connections without an answer: {self._certificate_hint if is_secure else other}",
            Fault.MALFORMED: f"it does not answer in HTTP: {other}",
        }
        return f"{self._where}: {text.get(fault, error.message) if fault else error.message}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The causes of an error, the nearest first; of a group, those of its first member."""
    cause = error.__cause__ or error.__context__
    while cause is not None:
        yield cause
        if isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        else:
            cause = cause.__cause__ or cause.__context__
