"""DeepSeek V3 and R1 (arguments in code), V3.1 (arguments behind the name), V3.2 and V4 (a tag per parameter).

V3.2's calls are written by code beside the model, `encoding_dsv32.py`, and by templates that follow it.
"""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.arguments.parameters import Parameters
from backends.native.tools.family import CallFormat, Family

_OPENS, _CLOSES = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001 - the tokens' own characters
_CALL, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001

_IN_CODE = CallFormat(
    trigger=_OPENS,
    opens=_OPENS,
    head=f"{_CALL}function{_SEPARATOR}",
    middle="\n```json\n",
    arguments=JSON,
    tail=f"\n```{_END}",
    between="\n",
    closes=_CLOSES,
)
_PLAIN = CallFormat(
    trigger=_OPENS,
    opens=_OPENS,
    head=_CALL,
    middle=_SEPARATOR,
    arguments=JSON,
    tail=_END,
    closes=_CLOSES,
)

DEEPSEEK_V3 = Family(name="deepseek_v3", marks=(_OPENS, "```json"), calls=(_IN_CODE, _PLAIN))
DEEPSEEK_V31 = Family(name="deepseek_v3_1", marks=(_OPENS,), calls=(_PLAIN, _IN_CODE))

DSML = "｜DSML｜"  # noqa: RUF001 - the token's own characters


def _tags(section: str) -> CallFormat:
    return CallFormat(
        trigger=f"<{DSML}{section}>",
        opens=f"<{DSML}{section}>\n",
        head=f'<{DSML}invoke name="',
        middle='">\n',
        # The attribute says whether the value is a text as it is, or JSON.
        arguments=Parameters(
            before=f'<{DSML}parameter name="',
            behind='" string="true">',
            closes=f"</{DSML}parameter>\n",
            behind_json='" string="false">',
        ),
        tail=f"</{DSML}invoke>\n",
        closes=f"</{DSML}{section}>",
    )


_V32, _V4 = _tags("function_calls"), _tags("tool_calls")
DEEPSEEK_V32 = Family(name="deepseek_v3_2", marks=(DSML, "function_calls"), calls=(_V32, _V4))
DEEPSEEK_V4 = Family(name="deepseek_v4", marks=(DSML,), calls=(_V4, _V32))
