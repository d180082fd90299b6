"""The grammar that constrains the answer to a request: of its tools, its format, or its bad words."""

from __future__ import annotations

from backends.native.grammar.grammar import GrammarCheck, text_without
from backends.native.tools.choice import is_free, offered_tools
from backends.native.tools.family import Family
from backends.native.tools.grammar import answer_grammar
from backends.native.tools.tags import Tags
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import Generate


async def constraint(
    request: Generate, family: Family, check: GrammarCheck | None, *, in_reasoning: bool = False
) -> str | None:
    """A grammar in llguidance's form, checked; None if the answer is free.

    Args:
        request: the request.
        family: how the model writes answers to it.
        check: checks grammars for the model's tokenizer; None if it does not allow for any.
        in_reasoning: whether the prompt ends with the tag that opens reasoning.

    Raises:
        schemas.errors.InvalidRequest: the grammar is not supported.
        schemas.errors.UnsupportedFeature: the model cannot have one, or not this combination.
    """
    if request.sampling.bad_words:
        return await _without_words(request, _required(check))
    offers = bool(request.tools and offered_tools(request))
    free = offers and is_free(request)
    if not offers and request.grammar is None:
        return None
    # Without grammars the reader alone reads the calls.
    if free and check is None:
        return None
    check = _required(check)
    tags = Tags(check.grammars.tags)
    for any_arguments in (False, True):
        try:
            source = answer_grammar(
                request,
                family,
                tags,
                text_tokens=check.grammars.text_tags,
                in_reasoning=in_reasoning,
                any_arguments=any_arguments,
            )
            if source is not None:
                await check.check(source, "tools" if offers else "response_format")
            return source
        # A client that did not ask for strict calls gets them as good as they can be: names and JSON hold.
        except InvalidRequest:
            if any_arguments or not free:
                raise
    return None


async def _without_words(request: Generate, check: GrammarCheck) -> str:
    """The grammar of a text without the request's bad words."""
    stopping = request.stopping
    # One grammar holds for an answer, and ends it where it wants to.
    if request.grammar or offered_tools(request) or stopping.ignore_eos or stopping.min_new_tokens:
        message = "'bad_words' cannot be combined with tools, a format of the answer, or tokens beyond its end."
        raise UnsupportedFeature(message, feature="bad_words", param="bad_words")
    source = text_without(request.sampling.bad_words, check.grammars.text_tags, "bad_words")
    await check.check(source, "bad_words")
    return source


def _required(check: GrammarCheck | None) -> GrammarCheck:
    if check is None:
        raise UnsupportedFeature("The model's tokenizer does not allow for grammars.", feature="grammar")
    return check
