"""The commands `gateway ask` and `gateway chat`: questions to a running gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from backends.terminal import escape_controls
from gateway.cli.client import Client, key_option, url_option, user_message

_model = click.option("--model", "--endpoint", help="Ask this endpoint.  [default: the first that is listed]")
_system = click.option("--system", help="Instructions that stand in front of the conversation.")
_tokens = click.option("--max-tokens", type=click.IntRange(1), help="The most tokens of an answer.")
_COMMANDS = "Ctrl-C stops an answer, Ctrl-D ends the chat, /new begins another one, /model NAME asks another endpoint."


@click.command()
@click.argument("question", nargs=-1)
@_model
@click.option("--image", "images", multiple=True, type=click.Path(path_type=Path), help="Show this image as well.")
@_system
@_tokens
@url_option
@key_option
def ask(
    question: tuple[str, ...],
    model: str | None,
    images: tuple[Path, ...],
    system: str | None,
    max_tokens: int | None,
    url: str,
    key_env: str | None,
) -> None:
    """Ask one QUESTION, and print the answer as it comes; without one, standard input is the question.

    gateway ask "How do I list files?" --model qwen
    """
    text = " ".join(question)
    if not text and not sys.stdin.isatty():
        text = sys.stdin.read().strip()
    if not text:
        raise click.UsageError("there is no question: give one, or pipe it in")
    messages = [*_instructions(system), user_message(text, images)]
    with Client(url, key_env) as client:
        body = _body(model or client.models()[0], messages, max_tokens)
        pieces: list[str] = []
        try:
            pieces.extend(_shown(client.stream(body)))
        finally:
            if pieces:  # an error gets a line of its own
                click.echo()


@click.command(epilog=_COMMANDS)
@_model
@_system
@_tokens
@url_option
@key_option
def chat(model: str | None, system: str | None, max_tokens: int | None, url: str, key_env: str | None) -> None:
    """Talk with an endpoint, which gets the whole conversation each time."""
    with suppress(ImportError):
        import readline  # noqa: F401 - its import gives `input` a history and editing
    with Client(url, key_env) as client:
        model = model or client.models()[0]
        click.echo(f"{model} at {client.url}. {_COMMANDS}", err=True)
        _talk(client, model, system, max_tokens)


def _talk(client: Client, model: str, system: str | None, max_tokens: int | None) -> None:
    messages = _instructions(system)
    while (text := _read()) is not None:
        command, _, argument = text.partition(" ")
        if command == "/new":
            messages = _instructions(system)
        elif command == "/model" and argument:
            model = argument.strip()
        elif text:
            asked = [*messages, user_message(text)]
            answer = _answer(client, _body(model, asked, max_tokens))
            if answer:
                messages = [*asked, {"role": "assistant", "content": answer}]


def _read() -> str | None:
    """A line of the user; None at the end. Ctrl-C gives the line up."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except KeyboardInterrupt:
        click.echo()
        return ""
    except EOFError:
        return None


def _answer(client: Client, body: dict[str, Any]) -> str:
    """Print an answer, and return as much of it as came: Ctrl-C stops it, and an error ends it."""
    pieces: list[str] = []
    # The generator closes the connection when it ends, which has the gateway stop the model.
    stream = client.stream(body)
    try:
        pieces.extend(_shown(stream))
    except KeyboardInterrupt:
        stream.close()  # type: ignore[attr-defined]  # it is a generator
        click.echo(" (stopped)", err=True, nl=False)
    except click.ClickException as error:
        click.echo(f"Error: {error.message}", err=True, nl=False)
    click.echo()
    return "".join(pieces)


def _shown(pieces: Iterator[str]) -> Iterator[str]:
    """Print pieces of text, and pass them on."""
    terminal = sys.stdout.isatty()
    for piece in pieces:
        # A terminal would obey control characters, and the text is a model's.
        click.echo(escape_controls(piece) if terminal else piece, nl=False)
        yield piece


def _instructions(system: str | None) -> list[dict[str, Any]]:
    return [{"role": "system", "content": system}] if system else []


def _body(model: str, messages: list[dict[str, Any]], max_tokens: int | None) -> dict[str, Any]:
    return {"model": model, "messages": messages} | ({"max_tokens": max_tokens} if max_tokens else {})
