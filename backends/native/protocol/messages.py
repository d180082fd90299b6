"""What a gateway worker and an engine say to each other: token ids and numbers, never text.

Each message is one msgpack frame (see `link`), arrays instead of maps. A sequence is one choice of one request; its
`seq` is chosen by the worker and unique on that worker's connection. The engine answers with at most one `Step` per
worker and engine step.
"""

from __future__ import annotations

import msgspec

from schemas.ir import FinishReason


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base: how every message is laid out."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the next token is chosen, resolved: every value is the neutral one unless it was asked for.

    `temperature` 0 is greedy. `top_k` 0 is off. Noise is a function of (`seed`, position, token), so that a seed gives
    the same tokens in any batch. `watermark` is the green list of Kirchenbauer et al. (arXiv 2301.10226).
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    watermark: bool = False


class Array(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A named array: numpy's `dtype` string, its shape, its bytes in C order."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Feature(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A picture in a prompt: `length` placeholder tokens from `offset` on stand for it.

    `is_embed` has a byte for each, 1 where an embedding of the picture goes; empty: everywhere. `arrays` are what the
    encoder is given. `identifier` names the content.
    """

    identifier: bytes
    offset: int
    length: int
    is_embed: bytes
    arrays: tuple[Array, ...]


class Submit(Message, frozen=True):
    """Worker: generate after `prompt`.

    `max_new_tokens` is resolved and fits the context. `stop_token_ids` end the choice with reason STOP_TOKEN,
    `eos_token_ids` with EOS; neither is heeded before `min_new_tokens`. `top_logprobs` -1: no logprobs at all.
    `prompt_logprobs` -1: none for the prompt. A greater `priority` goes first. `grammar` is what may be generated, in
    llguidance's words. `pool` asks for the prompt's vector, and with `max_new_tokens` 0 for nothing else; its first
    `unpooled` tokens do not count in it. `lora_adapter` is one of those that `Ready` names; empty: none. `again`: an
    engine that is gone had taken it.
    """

    seq: int
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams = SamplingParams()
    min_new_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: int = -1
    prompt_logprobs: int = -1
    priority: int = 0
    grammar: str | None = None
    features: tuple[Feature, ...] = ()
    pool: bool = False
    unpooled: int = 0
    lora_adapter: str = ""
    again: bool = False


class Cancel(Message, frozen=True):
    """Worker: the sequence is not wanted any more. Unknown sequences are ignored."""

    seq: int


class Ping(Message, frozen=True):
    """Worker: answer when the step loop next comes round, or the step in progress gets on."""

    token: int


class Logprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Natural logarithms at one position, before temperature and all other processing: of the token itself, then of the
    likeliest tokens, best first.
    """

    logprob: float | None
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Output(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a sequence gained in a step. `prompt` comes with the first output if it was asked for, one entry a prompt
    token, the first one's logprob None. `error` ends the sequence instead of `reason`; if `overloaded`, it was never
    begun for want of room and may be submitted again. `vector` is what was made of the prompt's last hidden states.
    """

    seq: int
    ids: tuple[int, ...] = ()
    reason: FinishReason | None = None
    logprobs: tuple[Logprobs, ...] = ()
    prompt: tuple[Logprobs, ...] = ()
    cached_tokens: int = 0
    error: str | None = None
    overloaded: bool = False
    vector: tuple[float, ...] = ()


class Step(Message, frozen=True):
    """Engine: what this worker's sequences gained."""

    outputs: tuple[Output, ...]


class Pong(Message, frozen=True):
    """Engine: the answer to `Ping`, sent by the step loop, with its state. The last three count since it started;
    prefixes are counted in tokens.
    """

    token: int
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class Loading(Message, frozen=True):
    """Engine: how far loading has come, 0 to 1, before `Ready`."""

    fraction: float
    what: str = ""


class Ready(Message, frozen=True):
    """Engine: the model is loaded; sent first on every connection made after that. `embedding_size` 0: no vectors;
    not `generates`: nothing else. `image_tokens` is the most that one picture may take in a prompt; 0: no pictures.
    """

    context_length: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    dtype: str
    device: str
    execution_path: str
    max_sequences: int
    image_tokens: int = 0
    embedding_size: int = 0
    generates: bool = True
    lora_adapters: tuple[str, ...] = ()

    @property
    def images(self) -> bool:
        """Whether prompts may hold pictures."""
        return self.image_tokens > 0


class Failed(Message, frozen=True):
    """Engine: the model cannot be loaded; `why` is for the operator."""

    why: str


ToEngine = Submit | Cancel | Ping
FromEngine = Step | Pong | Loading | Ready | Failed
