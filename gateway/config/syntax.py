"""What a text is that is no TOML, and what to write instead."""

from __future__ import annotations

import re
import tomllib

from gateway.config.base import ConfigError

# Of the line at which `tomllib` stops, in this order.
_MISTAKES = (
    (r"[\u2018-\u201f\u00ab\u00bb]", 'texts stand in straight quotes: "text"'),
    (r"^\s*(//|/\*|;|--)", "a comment begins with #"),
    (r"^\s*[\w.-]+\s*:(\s|$)", "write key = value"),
    (r"^[^#]*=\s*(True|False|TRUE|FALSE|yes|no|on|off)\b", "write true or false"),
    (r"^[^#]*=\s*(null|None|nil)\b", "leave out what has no value"),
    (r"^[^#]*=\s*[A-Za-z_./~$]", 'texts stand in quotes: key = "text"'),
    (r'^[^#]*"[^"]*\\', "in single quotes a backslash is one: 'C:\\models'"),
    (r",\s*}", "no comma stands before }"),
    (r"{[^}]*$|^[^{]*}", "a table in { } stands on one line, without a comma at its end"),
    (r"^\s*\[[^]]*$", "] is missing"),
    (r"""=\s*(["'])(?:(?!\1).)*$""", "a quote is missing"),
)


def read_toml(text: str) -> dict[str, object]:
    """The tables of a TOML text.

    Raises:
        ConfigError: it is none; the error begins with the line's number.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # `tomllib` has the position only in its text (until Python 3.14).
        found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)", str(error))
        at = int(found[1]) if found and found[1] else text.count("\n")
        what = str(error).removesuffix(found[0]) if found else str(error)
        raise ConfigError(f"{at}: {foreign(text) or what + _instead(text.splitlines()[at - 1 : at])}") from None


def _instead(lines: list[str]) -> str:
    hints = (hint for pattern, hint in _MISTAKES for line in lines if re.search(pattern, line))
    hint = next(hints, "")
    return f"; {hint}" if hint else ""


def foreign(text: str) -> str:
    """What a text is that is no TOML, with what to do; "" if that is not known."""
    if text.lstrip().startswith(("{", "[{")):
        language = "JSON"
    elif re.search(r"^(---|[\w-]+:(\s|$)|- )", text, re.MULTILINE) and not re.search(
        r"^\s*\[?[\w.-]+\]?\s*=", text, re.MULTILINE
    ):
        language = "YAML"
    else:
        return ""
    known = "see docs/configuration.md, or `gateway import` for another server's file"
    return f"this is {language}, and the gateway reads TOML: {known}"
