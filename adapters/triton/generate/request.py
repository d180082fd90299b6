"""The tensors and parameters of a request, from either kind of body, and their translation to the IR."""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Call, Route
from adapters.body import parse
from adapters.triton import tensors
from adapters.triton.dialects import Dialect
from adapters.triton.generate import parameters
from schemas.catalog import ModelCard
from schemas.errors import InvalidRequest, MalformedBody
from schemas.ir import Generate, ImagePart, Origin, Output, TextPrompt, TokensPrompt

ONE_RESPONSE = (
    "generate expects model to produce exactly 1 response, "
    "use generate stream for model that generates various number of responses"
)
STREAMS = ("generate_stream", "infer_stream")
"""The operations whose answers are streams: the generate extension's, and that of gRPC."""
_HINTS = ("details", "priority", "timeout", "batch_size", "typical_p", "watermark")
"""Parameters that have no effect on the answer's text (MindIE's), passed on to remotes of the protocol."""


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A request's tensors and parameters.

    `ids` are a prompt in place of `texts`. `own` are the inputs that the endpoint declares, for a server behind it.
    `flags` are the boolean inputs of the request, by their usual names; `outputs` are those that an infer request
    names, and `binary` is whether other outputs are sent as bytes. `unknown` are members of the body that have no
    meaning.
    """

    texts: tuple[str, ...]
    id: str = ""
    ids: tuple[int, ...] = ()
    images: tuple[ImagePart, ...] = ()
    flags: dict[str, bool] = {}
    parameters: dict[str, Any] = {}
    own: dict[str, Any] = {}
    outputs: tuple[Output, ...] = ()
    binary: bool = False
    unknown: tuple[str, ...] = ()


def from_tensors(
    values: dict[str, list[Any]],
    given_parameters: dict[str, Any],
    *,
    card: ModelCard,
    id: str,
    outputs: tuple[Output, ...] = (),
    binary: bool = False,
    unknown: tuple[str, ...] = (),
) -> Given:
    """The `Given` of tensors under the endpoint's own names.

    Raises:
        schemas.errors.InvalidRequest: a required input is missing, or `sampling_parameters` is not a JSON object.
    """
    known = tensors.inputs(card)
    _check_complete(values, known, card.name)
    # From here on tensors have the usual names, whatever the endpoint calls them.
    usual: dict[str, list[Any]] = {}
    flags: dict[str, bool] = {}
    found: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, elements in values.items():
        tensor = known[name]
        if tensor.own:
            own[name] = elements[0] if len(elements) == 1 else elements
        elif tensor.parameter:
            found[tensor.parameter] = _parameter(tensor, elements)
        elif tensor.datatype == "BOOL":
            flags[tensor.name] = elements[0]
        else:
            usual[tensor.name] = elements
    length = usual.get("input_lengths")
    return Given(
        id=id,
        texts=tuple(usual.get("text_input", ())),
        ids=tuple(usual.get("input_ids", ()))[: length[0] if length else None],
        images=tuple([ImagePart(image, "data") for image in usual["image"]]) if "image" in usual else (),
        flags=flags,
        # Inputs win over request parameters: vLLM's backend reads parameters only where its input is absent.
        parameters=given_parameters | found | _sampling_parameters(usual.get("sampling_parameters")),
        own=own,
        outputs=outputs,
        binary=binary,
        unknown=unknown,
    )


def to_generate(given: Given, route: Route, call: Call, card: ModelCard, dialect: Dialect, body: bytes) -> Generate:
    """The request in the IR.

    Raises:
        schemas.errors.InvalidRequest: a parameter is invalid, or not supported on this route.
    """
    operation = route.name.removesuffix("_version")
    values, extra = parameters.read(given.parameters, dialect)
    unknown = given.unknown + tuple(extra)
    _check_supported(given, values, unknown, operation, dialect)
    # The input `stream` is vLLM's: with false, a stream has one response.
    stream = operation in STREAMS and given.flags.get("stream", True)
    wanted = given.outputs or _outputs(given, card)
    if dialect.answers.details and values.get("details") and not operation.startswith("infer"):
        wanted += (Output("details", "details"),)
    names = {output.tensor for output in wanted}
    return Generate(
        id=call.id,
        model=card.name,
        prompts=(TokensPrompt(given.ids),)
        if given.ids
        else tuple([TextPrompt(text, given.images) for text in given.texts]),
        sampling=parameters.sampling(values, dialect),
        stopping=parameters.stopping(values, dialect),
        stream=stream,
        stream_usage=bool(names & {"num_input_tokens", "num_output_tokens"}),
        n=values.get("n", 1),
        best_of=values.get("best_of"),
        truncate_prompt_tokens=values.get("truncate_prompt_tokens", values.get("truncate")),
        echo=_echo(given.flags.get("exclude_input_in_output"), stream, dialect),
        logprobs="logprobs" in values or bool(names & _SCORES),
        top_logprobs=values.get("logprobs", 0),
        prompt_logprobs="prompt_logprobs" in values,
        grammar=parameters.grammar(values),
        lora_adapter=_lora_adapter(values.get("lora_name", values.get("adapter_id"))),
        client_request_id=given.id or None,
        outputs=wanted,
        hints={name: values[name] for name in _HINTS if name in values},
        extra=extra | given.own,
        unknown=unknown,
        origin=Origin("triton", dialect.name, route.name, body),
    )


def _check_supported(
    given: Given, values: dict[str, Any], unknown: tuple[str, ...], operation: str, dialect: Dialect
) -> None:
    for name in tensors.UNSUPPORTED_FLAGS:
        if given.flags.get(name):
            raise InvalidRequest(f"input '{name}' is not supported", param=name)
    if unknown and dialect.requests.strict:
        raise InvalidRequest(dialect.wording.unknown.format(name=min(unknown)), param=min(unknown))
    n, best_of = values.get("n", 1), values.get("best_of")
    # Triton's own message for a decoupled model on this route.
    if n > 1 and operation == "generate":
        raise InvalidRequest(ONE_RESPONSE, param="n")
    if best_of is not None and best_of < n:
        raise InvalidRequest("parameter 'best_of' must not be less than 'n'", param="best_of")


_SCORES = {"logprobs", "cumulative_logprob", "cum_log_probs", "output_log_probs"}
"""Outputs that need log-probabilities."""


_TEXT_ALONE = (Output("text_output", "text_output"),)


def outputs_of(request: Generate) -> tuple[Output, ...]:
    """The outputs in the answer to `request`."""
    return request.outputs or _TEXT_ALONE


def _check_complete(values: dict[str, list[Any]], known: dict[str, tensors.Tensor], model: str) -> None:
    # Nearly always the endpoint has the usual inputs, of which it needs the text alone.
    if known is tensors.INPUT and values.get("text_input") and not values.get("input_ids"):
        return
    usual = {tensor.name: name for name, tensor in known.items()}
    given = [name for name in ("text_input", "input_ids") if values.get(usual[name])]
    if len(given) == 2:
        raise InvalidRequest("only one of the inputs 'text_input' and 'input_ids' may be given", param="input_ids")
    # Token ids take the place of the text.
    required = [
        name
        for name, tensor in known.items()
        if not tensor.optional and (tensor.name, given) != ("text_input", ["input_ids"])
    ]
    missing = [name for name in required if not values.get(name)]
    if missing:
        raise InvalidRequest(
            f"expected number of inputs between {len(required)} and {len(known)} but got {len(values)} inputs for "
            f"model '{model}'. Got input(s) {_listed(values)}, but missing required input(s) {_listed(missing)}. "
            "Please provide all required input(s).",
            param=missing[0],
        )


def _listed(names: list[str] | dict[str, Any]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _parameter(tensor: tensors.Tensor, elements: list[Any]) -> Any:
    """The request parameter that an input stands for. An empty text is TensorRT-LLM's "no words"."""
    return [element for element in elements if element != ""] if tensor.dims == (-1,) else elements[0]


def _sampling_parameters(elements: list[str] | None) -> dict[str, Any]:
    """The parameters in the input `sampling_parameters` of vLLM's backend: a JSON text, which may have arrays."""
    if not elements:
        return {}
    try:
        found = parse(elements[0].encode())
    except MalformedBody as error:
        raise InvalidRequest(f"Unable to parse 'sampling_parameters': {error.message}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("Unable to parse 'sampling_parameters': attempt to access JSON non-object as object")
    return found


def _outputs(given: Given, card: ModelCard) -> tuple[Output, ...]:
    """The outputs of a request that lists none: the text, and those of its `return_…` inputs."""
    flags = given.flags
    if not (flags or given.binary or card.tensors.outputs):
        return _TEXT_ALONE
    return tuple(
        [
            Output(tensor.name, name, given.binary)
            for name, tensor in tensors.outputs(card).items()
            if not tensor.asked_by or flags.get(tensor.asked_by)
        ]
    )


def _echo(exclude: bool | None, stream: bool, dialect: Dialect) -> bool:
    if stream and exclude is False:
        raise InvalidRequest(
            "When streaming, `exclude_input_in_output` = False is not allowed.", param="exclude_input_in_output"
        )
    return not stream and not (dialect.defaults.exclude_input_by_default if exclude is None else exclude)


def _lora_adapter(name: str | None) -> str | None:
    """The LoRA adapter's name; in MindIE "None" means none."""
    return None if name == "None" else name
