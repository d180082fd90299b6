"""gpt-oss: every part of an answer is a message of its own, on a channel; a call is one to a recipient."""

from __future__ import annotations

from backends.native.tools.arguments.json_object import JSON
from backends.native.tools.family import CallFormat, Family, Reasoning

_CONSTRAINT = r"\s*(?:<\|constrain\|>)?(?:\w+)?\s*<\|message\|>"

HARMONY = Family(
    name="harmony",
    marks=("<|channel|>analysis<|message|>",),
    calls=(
        CallFormat(
            trigger="<|channel|>commentary to=functions.",
            head="<|channel|>commentary to=functions.",
            middle=" <|constrain|>json<|message|>",
            middle_pattern=_CONSTRAINT,
            arguments=JSON,
        ),
        # The recipient may also stand before the channel, as in the model's own template.
        CallFormat(
            trigger=" to=functions.",
            head=" to=functions.",
            middle="<|channel|>commentary json<|message|>",
            middle_pattern=rf"\s*<\|channel\|>(?:commentary|analysis){_CONSTRAINT}",
            arguments=JSON,
        ),
    ),
    reasoning=Reasoning("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
    text=("<|channel|>final<|message|>", ""),
    dropped=("<|channel|>commentary<|message|>", "<|start|>assistant", "<|end|>", "<|return|>", "<|call|>"),
    # A call ends the model's turn.
    most=1,
)
