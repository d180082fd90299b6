"""Conversations without their oldest turns, before they are sent: `truncation: "auto"` where a context length is known.

The tokens of a conversation are counted with the configured tokenizer: exactly if the gateway renders the chat itself,
else without what the server's template adds. Without a tokenizer they are estimated. Such a count is rather too low
than too high: the server has the last word, and no turn goes that might have fitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from backends.prompts import texts_of
from backends.remote.context.lengths import ContextLengths
from backends.truncation import encode_fitting
from schemas.ir import ChatPrompt, Generate, TextPrompt

if TYPE_CHECKING:
    from backends.remote.chat_text import ChatText
    from backends.remote.retokeniser import Retokeniser

_BYTES_PER_TOKEN = 4
"""Of UTF-8 in the texts of a conversation: English has 4 to 5; code and Chinese, about 3."""


class Shortening:
    """Shortens the conversations of one backend's requests.

    Args:
        lengths: the context lengths of the server's models.
        retokeniser: the configured tokenizer; None if there is none.
        chat: what renders chats; None if the server does.
    """

    def __init__(self, lengths: ContextLengths, retokeniser: Retokeniser | None, chat: ChatText | None) -> None:
        self._lengths = lengths
        self._retokeniser = retokeniser
        self._chat = chat

    async def fitting(self, request: Generate) -> Generate:
        """The request, without as many of the oldest turns as must go for prompt and answer to fit.

        It is returned as it is if the length is not known, if all of it fits, and if not even its last turn does.
        """
        prompt = request.prompts[0]
        if request.overflow != "drop_turns" or not isinstance(prompt, ChatPrompt):
            return request
        length = await self._lengths.of(request.model)
        if length is None:
            return request
        room = length - (request.stopping.max_new_tokens or 1)

        async def measured(form: ChatPrompt) -> tuple[int, ChatPrompt]:
            return await self._count(form, request), form

        tokens, form = await encode_fitting(prompt, measured, lambda found: found[0] <= room)
        return request if form is prompt or tokens > room else replace(request, prompts=(form,))

    async def _count(self, prompt: ChatPrompt, request: Generate) -> int:
        if self._chat is not None and self._retokeniser is not None:
            rendered = await self._chat.rendered(replace(request, prompts=(prompt,)))
            return sum(self._retokeniser.count(each.text) for each in rendered.prompts if isinstance(each, TextPrompt))
        texts = [*texts_of(prompt), *(msgspec.json.encode(tool).decode() for tool in request.tools)]
        if self._retokeniser is not None:
            return sum(self._retokeniser.count(text, add_special_tokens=False) for text in texts)
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) // _BYTES_PER_TOKEN
