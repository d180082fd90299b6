"""The command `gateway init`: a commented configuration to start from."""

from __future__ import annotations

from pathlib import Path

import click

from backends.remote.kinds import SPOKEN_BY

_HEAD = """\
# What `gateway serve --config {file}` serves; `gateway check {file}` says what is wrong with it.
# Every key, with its default: docs/configuration.md.

[server]
host = "127.0.0.1"           # 0.0.0.0: every address; then keys are needed
port = 8000
workers = 1                  # processes for HTTP; about one for each core that is free
# keys_env = "KEYS"          # the environment variable with the API keys, separated by commas
# keys_file = "keys.json"    # keys with names, limits and rights: `gateway keys new NAME`
"""
_NATIVE = """
# A model that the gateway runs itself.
[backends.local]
kind = "native"
model = "smollm2"            # a folder, a GGUF file, smollm2, minilm, or owner/name of the hub
# dtype = "auto"             # float32, bfloat16, float16; int8, or int4 on CPUs
# context_length = 8192      # shortens the model's own
"""
_REMOTE = """
# A server of somebody else: vLLM, SGLang, llama.cpp, Ollama, Azure and OpenAI are of this kind; docs/configuration.md
# lists the others.
[backends.remote]
kind = "{kind}"
url = "http://127.0.0.1:8001/v1"
# api_key_env = "REMOTE_KEY" # the environment variable with its key
# timeouts = { first_token = 60.0, idle = 30.0 }
"""
_ENDPOINT = """
# What clients name as `model`.
[endpoints.chat]
# aliases = ["gpt-4o-mini"]  # other names for it
served_entities = [
{arms}
]
"""
_ARMS = {
    "native": '  { name = "local", backend = "local" },',
    "remote": '  { name = "remote", backend = "remote", model = "the-model-there" },',
    "compare": """\
  { name = "current", backend = "remote", model = "the-model-there", traffic_percentage = 90 },
  { name = "challenger", backend = "local", traffic_percentage = 10 },""",
}
_COMPARE = """
# A user stays with the model that was drawn for it; GET /serving-endpoints/chat/experiment reports the difference.
[endpoints.chat.experiment]
unit = ["user", "conversation", "request"]
guardrail = { worse_than = 0.02 }  # stops a challenger that fails more often
"""
_PARTS = {
    "native": (_HEAD, _NATIVE, _ENDPOINT),
    "remote": (_HEAD, _REMOTE, _ENDPOINT),
    "compare": (_HEAD, _REMOTE, _NATIVE, _ENDPOINT, _COMPARE),
}


@click.command()
@click.argument("kind", type=click.Choice(list(_PARTS)), default="native")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default="gateway.toml",
    show_default=True,
    help="Write this file. It is never replaced.",
)
def init(kind: str, output: Path) -> None:
    """Write a commented configuration to start from.

    KIND: `native` runs a model here, `remote` stands in front of another server, `compare` splits the traffic between
    the two.
    """
    text = "".join(_PARTS[kind]).replace("{arms}", _ARMS[kind]).replace("{file}", output.name)
    write_new(output, text.replace("{kind}", SPOKEN_BY["vllm"]))
    click.echo(f"{output} is written. Next: gateway check {output}, then gateway serve --config {output}", err=True)


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet.

    Raises:
        click.ClickException: it is there, or cannot be written.
    """
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise click.ClickException(f"{file} is there already, and is not replaced") from None
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
