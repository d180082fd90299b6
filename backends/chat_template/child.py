"""The process that renders a chat template: run as a script, with limits on memory and on CPU time per chat.

Imports nothing of this project: it starts fast and holds no secrets. Protocol: each request on stdin is `number,
length, JSON`, and each reply on stdout `number, status, length, UTF-8`. The first request sets the template up; its
reply has the literal text of the template and the variables that it reads, as JSON. What a request may do is bounded by
the kernel: a limit on the address space, and a timer that ends this process once a request has taken too much CPU time,
also in the middle of one long operation.

The environment is that of `transformers.utils.chat_template_utils`: what a template may use is defined there.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import struct
import sys
from datetime import datetime
from typing import Any, BinaryIO

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# Big-endian. Request: number and length of the JSON; reply: number, status and length of the text.
REQUEST = struct.Struct(">II")
REPLY = struct.Struct(">IBI")
RENDERED, REJECTED, BEYOND_LIMITS = range(3)

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_MAX_REASON = 500  # characters
_REASONING = ("reasoning_content", "thinking", "reasoning")


class BeyondLimits(Exception):
    """The text is longer than it may be."""


class _Generation(Extension):
    """`{% generation %}`, which marks what the model wrote: rendered as if the tag were not there."""

    tags = {"generation"}  # noqa: RUF012 - as in Jinja

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_as_is"), [], [], body).set_lineno(line)

    def _as_is(self, caller: Macro) -> str:
        return caller()


class _Dict:
    """`dict` in templates, without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


class _PublicNamespace(Namespace):
    """`namespace` in templates, which refuses names with a leading underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in Jinja: `namespace(self=...)` is allowed
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_public(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _check_public(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"A template cannot set the attribute {name!r}.")


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # Jinja's own filter escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)  # local time, as in transformers


def environment() -> ImmutableSandboxedEnvironment:
    """Make the environment that chat templates are written for."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _tojson
    made.globals.update(
        raise_exception=_raise_exception, strftime_now=_strftime_now, dict=_Dict(), namespace=_PublicNamespace
    )
    return made


class Templates:
    """The template of a model, or its two: one for chats with tools.

    Args:
        sources: Jinja sources by name; `default`, and perhaps `tool_use`.
        variables: further variables for the template, such as the names of special tokens.
    """

    def __init__(self, sources: dict[str, str], variables: dict[str, Any]) -> None:
        made = environment()
        trees = [made.parse(source) for source in sources.values()]
        self.literals = "\0".join(text for tree in trees for text in _literals(tree))
        self.reads = sorted({name for tree in trees for name in meta.find_undeclared_variables(tree)})
        self._templates = {name: made.from_string(source) for name, source in sources.items()}
        self._variables = variables

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None,
        longest: int,
        opens_answer: bool = True,
        variables: dict[str, Any] | None = None,
    ) -> bytes:
        """Render a chat to UTF-8, up to where an answer begins if `opens_answer`; `variables` are the client's.

        Raises:
            BeyondLimits: the text would have more than `longest` bytes.
            Exception: whatever the template raises.
        """
        template: Template = self._templates["default"]
        if tools is not None:
            template = self._templates.get("tool_use", template)
        parts, left = [], longest
        ours = {
            "messages": list(map(_aliased, messages)),
            "tools": tools,
            "documents": None,
            "add_generation_prompt": opens_answer,
        }
        # A client's variable never replaces one of ours.
        for part in template.generate({**(variables or {}), **self._variables, **ours}):
            left -= len(part)
            if left < 0:
                raise BeyondLimits
            parts.append(part)
        text = "".join(parts).encode(errors="replace")
        if len(text) > longest:
            raise BeyondLimits
        return text


def _literals(tree: nodes.Template) -> list[str]:
    """The text that the template itself contains."""
    data = [node.data for node in tree.find_all(nodes.TemplateData)]
    return data + [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]


def _aliased(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose reasoning is found under each name that templates use for it."""
    reasoning = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def serve(read: BinaryIO, write: BinaryIO, seconds: float) -> None:
    """Answer requests until stdin is closed, each within `seconds` of CPU time."""
    templates: Templates | None = None
    # A blocking read of exactly this size; empty once the gateway has closed the socket or has ended.
    while head := read.read(REQUEST.size):
        number, length = REQUEST.unpack(head)
        data = read.read(length)
        # The default action of SIGPROF ends the process, whatever it does: no code of the template can delay it.
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            request = json.loads(data)
            del data
            if templates is None:
                templates = Templates(**request)
                about = {"literals": templates.literals, "reads": templates.reads}
                status, body = RENDERED, json.dumps(about).encode()
            else:
                status, body = RENDERED, templates.render(**request)
        except (BeyondLimits, MemoryError, RecursionError):
            status, body = BEYOND_LIMITS, b""
        except Exception as error:  # a template can raise anything
            known = isinstance(error, (TemplateError, ValueError))
            reason = str(error) if known else f"it fails with {type(error).__name__}"
            status, body = REJECTED, reason[:_MAX_REASON].encode(errors="replace")
        signal.setitimer(signal.ITIMER_PROF, 0)
        write.write(REPLY.pack(number, status, len(body)))
        write.write(body)
        write.flush()


def _address_space() -> int:
    """The bytes of address space in use now; 0 on systems without /proc."""
    try:
        with open("/proc/self/statm") as file:
            # The first field is the size of the whole address space, in pages (proc(5)).
            return int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        return 0


def main() -> None:
    """`child.py BYTES SECONDS PARENT`: serve with at most that much address space in addition to what Python takes."""
    if sys.platform == "linux":
        # A stopped child does not notice that its input has ended: the kernel kills it with its parent.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(sys.argv[3]):
            sys.exit(1)
    memory = _address_space() + int(sys.argv[1])
    # Hard limits equal to the soft ones, so that nothing can raise them again.
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # no byte can be written to any file
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[2]))


if __name__ == "__main__":
    main()
