"""The features that a request needs, and whether a backend has them: asked before the request reaches it."""

from __future__ import annotations

from operator import attrgetter

from backends.base import Capabilities, Feature
from backends.prompts import images_of
from schemas.errors import InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, Embed, Generate, Request, Sampling, TemplateOptions, TextPrompt, TokensPrompt
from schemas.origin import Relay

_USUAL = TemplateOptions()
_SAMPLERS = {each: getattr(Sampling(), each) for each in Feature if each in Sampling.__struct_fields__}
"""The features that are a parameter of sampling, and have its name: the value of each that asks for nothing."""
# Most requests ask for none of the features that few ask for. Their values are compared at once for that.
_samplers = attrgetter(*map(str, _SAMPLERS))
_NO_SAMPLERS = tuple(_SAMPLERS.values())
_asked_for = attrgetter(
    "tools", "grammar", "logprobs", "top_logprobs", "prompt_logprobs", "best_of", "suffix", "lora_adapter", "overflow"
)
_NOTHING_ASKED_FOR = _asked_for(Generate(id="", model="", prompts=()))


def needs(request: Generate) -> frozenset[Feature]:
    """The features that a backend must have to answer `request` completely."""
    sampling, needed = request.sampling, []
    if _samplers(sampling) != _NO_SAMPLERS:
        needed = [feature for feature, unset in _SAMPLERS.items() if getattr(sampling, feature) != unset]
    for prompt in request.prompts:
        if isinstance(prompt, ChatPrompt):
            needed += (Feature.CHAT,) if prompt.template == _USUAL else (Feature.CHAT, Feature.TEMPLATE_OPTIONS)
        elif isinstance(prompt, TokensPrompt):
            needed.append(Feature.TOKEN_PROMPTS)
        if images_of(prompt):
            needed.append(Feature.IMAGES)
    if _asked_for(request) != _NOTHING_ASKED_FOR:
        wanted = (
            # With `tool_choice` "none", the tools are not offered to the model.
            (Feature.TOOLS, request.tools and (request.tool_choice is None or request.tool_choice.mode != "none")),
            (Feature.GRAMMAR, request.grammar is not None),
            (Feature.LOGPROBS, request.logprobs and not request.logprobs_optional),
            (Feature.TOP_LOGPROBS, request.top_logprobs > 0),
            (Feature.PROMPT_LOGPROBS, request.prompt_logprobs),
            (Feature.BEST_OF, request.best_of is not None and request.best_of > request.n),
            (Feature.SUFFIX, request.suffix),
            (Feature.LORA, request.lora_adapter is not None),
            (Feature.TRUNCATION, request.overflow == "drop_turns"),
        )
        needed += [feature for feature, asked in wanted if asked]
    return frozenset(needed)


def _is_usual(request: Generate) -> bool:
    """Whether a request is for one answer to one chat of texts alone, and needs nothing but `Feature.CHAT`."""
    prompts = request.prompts
    if request.n != 1 or _asked_for(request) != _NOTHING_ASKED_FOR or _samplers(request.sampling) != _NO_SAMPLERS:
        return False
    if len(prompts) != 1 or not isinstance(chat := prompts[0], ChatPrompt) or chat.template != _USUAL:
        return False
    for message in chat.messages:  # noqa: SIM110 - `all` would be another function for each request
        if isinstance(message.content, tuple):
            return False
    return True


def check(request: Generate, capabilities: Capabilities, model: str) -> None:
    """Refuse a request that a backend of these capabilities cannot answer completely.

    Raises:
        schemas.errors.InvalidRequest: it asks for too many choices, or for a LoRA adapter that is not there.
        schemas.errors.UnsupportedFeature: a feature is missing; the first one in the order of `Feature` is named.
    """
    if capabilities.generates is False:
        made = "scores" if not capabilities.embeddings and "classify" in capabilities.scoring else "embeddings"
        raise UnsupportedFeature(f"The model '{model}' makes {made}, and no text.", feature="generate")
    if Feature.CHAT in capabilities.features and capabilities.max_choices > 0 and _is_usual(request):  # the fast path
        return
    # A text that the chat template is for becomes a conversation.
    if not capabilities.raw_text and request.raw_prompt and any(isinstance(p, TextPrompt) for p in request.prompts):
        raise UnsupportedFeature(f"The model '{model}' takes conversations only, not raw text.", feature="raw_text")
    no_template = Feature.CHAT not in capabilities.features
    if no_template and not request.raw_prompt and any(isinstance(p, TextPrompt) for p in request.prompts):
        message = f"The model '{model}' takes raw text only: it has no chat template for the prompt."
        raise UnsupportedFeature(message, feature="raw_prompt")
    # All candidates count, not only the returned ones: each is generated.
    choices = len(request.prompts) * max(request.n, request.best_of or 1)
    if choices > capabilities.max_choices:
        raise InvalidRequest(
            f"The request asks for {choices} choices in all; the model '{model}' makes at most "
            f"{capabilities.max_choices} at a time.",
            param="n",
        )
    # Refused before the backend sees the request: a parameter must not be dropped silently.
    needed = needs(request)
    if not needed <= capabilities.features:
        feature = min(needed - capabilities.features, key=list(Feature).index)
        raise UnsupportedFeature(
            f"The model '{model}' does not support {feature.value.replace('_', ' ')} yet.",
            feature=feature.value,
        )
    lora = request.lora_adapter
    # Without a list, the LoRA adapters are not known here, and the backend itself must refuse.
    if lora is not None and capabilities.lora_adapters and lora not in capabilities.lora_adapters:
        raise InvalidRequest(f"The model '{model}' has no LoRA adapter '{lora}'.", param="lora_adapter")


def can_answer(request: Request, capabilities: Capabilities) -> bool:
    """Whether a backend of these capabilities takes a request of this kind. Its model may still refuse it."""
    if not capabilities.known:
        return True
    if isinstance(request, Embed):
        return capabilities.embeddings
    if not isinstance(request, Generate):
        origin = request.origin
        relayed = origin is not None and (origin.dialect, origin.operation) in capabilities.relays
        if isinstance(request, Relay):
            by_text = request.by_text and capabilities.generates is not False
            return relayed or by_text or request.scoring in capabilities.scoring
        return relayed or capabilities.tokenize
    try:
        check(request, capabilities, request.model)
    except InvalidRequest:
        return False
    return True
