"""A client of a running gateway, for the commands that ask one."""

from __future__ import annotations

import base64
import ipaddress
import json
import mimetypes
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import click
import httpx

LOCAL = "http://127.0.0.1:8000"
KEY_VARIABLE = "INTERLINGUA_KEY"
"""The variable of the key, unless another is named."""

_TIMEOUT = httpx.Timeout(600.0, connect=5.0)


key_option = click.option("--key-env", help=f"Name of the variable that holds the key.  [default: {KEY_VARIABLE}]")
url_option = click.option("--url", default=LOCAL, show_default=True, help="The gateway, or a server like OpenAI's.")


def headers(key_env: str | None) -> dict[str, str]:
    """The header of the key in a variable; none if there is no key.

    Raises:
        click.UsageError: a variable was named, and it is not set.
    """
    key = os.environ.get(key_env or KEY_VARIABLE, "").partition(",")[0].strip()
    if key_env and not key:
        # Without the value: it may be a key that was given instead of a name.
        raise click.UsageError("--key-env takes the name of an environment variable, and that one is not set")
    return {"authorization": f"Bearer {key}"} if key else {}


def base_url(url: str) -> str:
    """The URL of a server as it is typed: with or without a scheme and `/v1`."""
    url = url if "://" in url else f"http://{url}"
    return url.rstrip("/").removesuffix("/v1")


def uses_proxy(url: str) -> bool:
    """Whether a proxy of the environment may be asked for a URL: never for this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn what goes wrong with a server into one sentence.

    Raises:
        click.ClickException: something did.
    """
    try:
        yield
    except httpx.ConnectError as error:
        hint = "start one with `gateway serve`, or name it by --url"
        raise click.ClickException(f"no server answers at {url}: {error or 'no connection'}; {hint}") from None
    except (httpx.TimeoutException, httpx.TransportError) as error:
        raise click.ClickException(f"{url}: the answer was cut: {error or type(error).__name__}") from None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise click.ClickException(f"{url}: {error}") from None


class Client:
    """Asks one server, over OpenAI's protocol, which every server has.

    Args:
        url: the server, with or without `/v1`.
        key_env: the variable of its key.
    """

    def __init__(self, url: str, key_env: str | None = None) -> None:
        self.url = base_url(url)
        self._http = httpx.Client(
            base_url=self.url, headers=headers(key_env), timeout=_TIMEOUT, trust_env=uses_proxy(self.url)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def models(self) -> list[str]:
        """The names of the models.

        Raises:
            click.ClickException: the server does not answer, or refuses.
        """
        with explained(self.url):
            answer = self._http.get("/v1/models")
            _check(self.url, answer)
            listed = answer.json()
        models = listed.get("data") if isinstance(listed, dict) else None
        if not isinstance(models, list) or not models:
            raise click.ClickException(f"{self.url} lists no models: name one by --model")
        return [str(model.get("id")) for model in models]

    def stream(self, body: dict[str, Any]) -> Iterator[str]:
        """The text of an answer, piece by piece.

        Raises:
            click.ClickException: it fails, or ends before its end.
        """
        with (
            explained(self.url),
            self._http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer,
        ):
            if answer.is_error:
                answer.read()
            _check(self.url, answer)
            for line in answer.iter_lines():
                if line == "data: [DONE]":
                    return
                if line.startswith("data:"):
                    event = json.loads(line[5:])
                    if "error" in event:
                        raise click.ClickException(f"the answer was cut: {_message(event)}")
                    for choice in event.get("choices", ()):
                        yield choice.get("delta", {}).get("content") or ""
            raise click.ClickException("the answer was cut: it ended without its end")


def user_message(text: str, images: Sequence[Path] = ()) -> dict[str, Any]:
    """A user's message, with images as data URLs.

    Raises:
        click.ClickException: an image cannot be read.
    """
    if not images:
        return {"role": "user", "content": text}
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    for image in images:
        try:
            data = base64.b64encode(image.read_bytes()).decode()
        except OSError as error:
            raise click.ClickException(f"{image}: {error.strerror}") from None
        kind = mimetypes.guess_type(image.name)[0] or "image/png"
        parts.append({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}})
    return {"role": "user", "content": parts}


def _check(url: str, answer: httpx.Response) -> None:
    """Pass an answer that is no error.

    Raises:
        click.ClickException: it is one.
    """
    if answer.status_code == 401:
        hint = f"export one as {KEY_VARIABLE}, or name its variable by --key-env"
        raise click.ClickException(f"{url} needs a key that it knows: {hint}")
    if answer.is_error:
        try:
            text = _message(answer.json())
        except ValueError:
            text = answer.text[:500]
        raise click.ClickException(f"{url}: {answer.status_code}: {text}")


def _message(body: Any) -> str:
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
