"""vLLM: a `vllm serve` or `docker run` line, a script that has one, a compose file, or vLLM's YAML configuration."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from gateway.importers.containers import Container, find_container
from gateway.importers.draft import Draft, is_alias, slug
from gateway.importers.fields import Fields, Left, UnreadableError, read_yaml
from gateway.importers.vllm_flags import FLAGS, SHORT, answer

_COMMAND = re.compile(r"(vllm\s+serve|vllm\.entrypoints\.openai\.api_server)\b(?P<rest>.*)", re.DOTALL)
_IMAGE = "vllm-openai"
_KEY = "VLLM_API_KEY"


def read_vllm(text: str) -> Draft:
    """Our configuration for vLLM's.

    Raises:
        UnreadableError: it is neither a command nor a configuration of vLLM's, or it names no model.
    """
    if (container := find_container(text, _IMAGE)) is not None:
        return _contained(container)
    command = _COMMAND.search(text)
    if command is not None:
        line = text.count("\n", 0, command.start()) + 1
        # Up to the end of the line, which a backslash continues.
        rest = re.sub(r"\\\r?\n", " ", command["rest"]).splitlines()
        try:
            words = shlex.split(rest[0] if rest else "", comments=True)
        except ValueError as error:
            raise UnreadableError(f"the command cannot be read: {error}") from None
        fields = Fields(dict(_flags(words)), lines={(): line})
    else:
        fields = read_yaml(text)
    return native_draft(fields, "model")


def _contained(container: Container) -> Draft:
    """A configuration of what a container serves, with the port and the folders of the machine.

    Raises:
        UnreadableError: its command names no model.
    """
    # The image begins the command, unless it is given whole.
    words = container.command
    whole = _COMMAND.search(shlex.join(words))
    words = shlex.split(whole["rest"]) if whole is not None else words
    draft = native_draft(Fields(dict(_flags(words)), lines={(): container.line}), "model")
    draft.server["port"] = container.ports.get(draft.server["port"], draft.server["port"])
    for section in draft.backends.values():
        model = section["model"]
        section["model"] = container.path(model)
        if model.startswith("/") and section["model"] == model:
            draft.left.append(
                Left(container.line, "model", f"'{model}' is a folder of the container: name this machine's")
            )
    for name in container.others:
        draft.left.append(Left(0, f"services.{name}", "one server is imported at a time: give its command by itself"))
    return draft


def native_draft(fields: Fields, model: str) -> Draft:
    """A configuration of one native model by vLLM's settings, which are named as its flags or as its arguments are.

    Raises:
        UnreadableError: no model is named.
    """
    draft = Draft(fields.left)
    values = {name.replace("_", "-"): name for name in fields.values}
    options = native_options(fields)
    if "model" not in options:
        raise UnreadableError(f"it names no `{model}`")
    if "api-key" in values:
        draft.server["keys_env"] = _KEY
    for name in ("host", "ssl-certfile", "ssl-keyfile", "ssl-ca-certs"):
        if name in values and (value := fields.take(values[name], str)) is not None:
            draft.server[name.replace("-", "_")] = value
    draft.server["port"] = fields.take("port", int, 8000)
    names = fields.values.get(values.get("served-model-name", ""), [options["model"]])
    name, *aliases = map(str, names if isinstance(names, list) else [names])
    add_native(draft, name, options, [alias for alias in aliases if is_alias(alias)])
    for alias in aliases:
        if not is_alias(alias):
            fields.leave(values["served-model-name"], f"'{alias}' can be no alias: it has spaces or brackets")
    return draft


def add_native(draft: Draft, name: str, options: dict[str, Any], aliases: list[str]) -> None:
    """Add a native backend, and the endpoint that it answers."""
    backend = draft.backend(slug(PurePath(name).name), {"kind": "native", **options})
    endpoint: dict[str, Any] = {"served_entities": [{"name": slug(name), "backend": backend}]}
    draft.endpoints[name] = endpoint | ({"aliases": aliases} if aliases else {})


def native_options(fields: Fields) -> dict[str, Any]:
    """The options of a native backend by vLLM's settings; what has no counterpart is reported."""
    options: dict[str, Any] = {}
    for name, value in fields.values.items():
        try:
            found = answer(name.replace("_", "-"), value)
        except ValueError as error:
            fields.leave(name, str(error))
            continue
        options |= found.options
        if found.note:
            fields.leave(name, found.note)
        fields.drop(name)
    if (revision := options.pop("revision", None)) and "model" in options:
        options["model"] += f"@{revision}"
    return options


def _flags(words: list[str]) -> Iterator[tuple[str, Any]]:
    """The settings of a command: its flags, and the model, which may stand without one."""
    found: dict[str, Any] = {}
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            found.setdefault("model", word)
            continue
        flag, equals, value = word.partition("=")
        name = SHORT.get(flag, flag.lstrip("-").replace("_", "-"))
        takes = FLAGS[name].takes if name in FLAGS else "value"
        values = [value] if equals else []
        # A flag that is not in the table has a value if something follows that is no flag.
        most = {"nothing": 0, "value": 1, "values": len(words)}[takes]
        while len(values) < most and at < len(words) and not words[at].startswith("-"):
            values.append(words[at])
            at += 1
        found[name] = values if takes == "values" else values[0] if values else True
    yield from found.items()
