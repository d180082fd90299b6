"""DeepSeek V3 and R1 (arguments in a block of code) and V3.1 (arguments behind the name)."""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
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
