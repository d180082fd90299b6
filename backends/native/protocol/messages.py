"""The messages between a gateway worker and an engine: token ids and numbers, never text.

Each message is one msgpack frame (see `frames`), encoded as an array. A sequence is one choice of one request; its
`seq` is chosen by the worker and unique on that worker's connection. The engine sends at most one `Step` per worker and
step.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.ir import FinishReason


# `array_like` encodes fields by position, without their names, so the order of fields is part of the protocol. `tag`
# puts the class name first, by which the receiver's union is decoded. `gc=False` keeps messages out of the garbage
# collector's sight: they are trees of numbers and bytes and cannot form cycles.
class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=True):
    """Base of all messages: the msgpack layout."""


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Sampling of the next token, resolved: a value that the request does not set is the neutral one.

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
    """An image in a prompt, represented by `length` placeholder tokens from `offset` on.

    `is_embed` has a byte per placeholder token, 1 where an embedding of the image goes; empty: everywhere. `arrays` are
    the encoder's arguments. `identifier` is a digest of the content.
    """

    identifier: bytes
    offset: int
    length: int
    is_embed: bytes
    arrays: tuple[Array, ...]


Unchunked = Literal["nothing", "image", "prompt"]
"""What of a prompt must be run in one step: nothing in particular, the tokens of an image, all of it."""


class Submit(Message, frozen=True):
    """Worker to engine: generate after `prompt`.

    `max_new_tokens` is resolved and fits the context. `stop_token_ids` end the choice with reason STOP_TOKEN,
    `eos_token_ids` with EOS; neither has an effect before `min_new_tokens`. `top_logprobs` -1: no logprobs at all.
    `prompt_logprobs` -1: none for the prompt. A greater `priority` is scheduled first. `grammar` constrains the text,
    in llguidance's form. `pool` requests the prompt's vector, and with `max_new_tokens` 0 nothing else; its first
    `unpooled` tokens are excluded from pooling. `lora_adapter` is one of `Ready.lora_adapters`; empty: none. `again`:
    the sequence was submitted to an engine that died. Sequences of different `flow`s share the engine fairly. `second`:
    where the second text of a pair begins, for models that distinguish the two; 0: there is none. `block_keys`: the
    names of the prompt's full blocks (`blocks`), joined, if the worker has computed them. `received`: tokens that an
    engine which died has generated after the prompt; the first `Output` has those behind them. `each_token`: of an
    encoder the vectors of the prompt's tokens instead of one. `unattended`: as many tokens at its end are seen by none.
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
    flow: str = ""
    second: int = 0
    block_keys: bytes = b""
    received: tuple[int, ...] = ()
    each_token: bool = False
    unattended: int = 0


class Cancel(Message, frozen=True):
    """Worker to engine: drop the sequence. Unknown sequences are ignored."""

    seq: int


class Ping(Message, frozen=True):
    """Worker to engine: answer with a `Pong` between two steps, or as soon as the step in progress makes progress."""

    token: int


class Watch(Message, frozen=True):
    """Worker to engine: answer with `Cached`, and add all later changes of the prefix cache to steps."""


class Manage(Message, frozen=True):
    """Worker to engine: change something for all workers; answered by `Managed`, and by a `Ready` once it is done.

    `sleep` with a `level` (see `engine.serving.management`), `wake`, `load_lora` with a `name` and the folder `path`,
    and `unload_lora` with a `name`. The worker has checked names and paths.
    """

    token: int
    action: Literal["sleep", "wake", "load_lora", "unload_lora"]
    level: int = 1
    name: str = ""
    path: str = ""


class Logprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities (natural) at one position, before temperature and all other processing: of the token itself,
    and of the most probable tokens, best first.
    """

    logprob: float | None
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Output(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The new tokens of a sequence in one step.

    `prompt` comes with the first output if it was requested: one entry per prompt token, with None as the first one's
    logprob. `error` ends the sequence instead of `reason`; if `overloaded`, the sequence was rejected for lack of room
    and may be submitted again; if `bad_grammar`, its grammar cannot be followed. `vector` is the pooled prompt, or
    the vectors of its tokens one after the other; of a sparse vector it has the index and the value of each component
    that is not 0. `times` comes with the first output: when the sequence was submitted and when it came into the batch,
    on the machine's monotonic clock.
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
    bad_grammar: bool = False
    times: tuple[float, ...] = ()


class Step(Message, frozen=True):
    """Engine to worker: the outputs of this worker's sequences in one step.

    `ended` is when the step did, on the machine's monotonic clock; 0: not known. For a worker that watches the prefix
    cache (`Watch`): the keys of blocks that have come into it and of those that have left it, joined; such a step may
    have no outputs.
    """

    outputs: tuple[Output, ...]
    ended: float = 0.0
    stored: bytes = b""
    removed: bytes = b""


class Cached(Message, frozen=True):
    """Engine to worker: the answer to `Watch`, with the keys of all blocks in the prefix cache, joined."""

    keys: bytes


class Pong(Message, frozen=True):
    """Engine to worker: the answer to `Ping`, sent by the step loop, with the engine's state.

    `preemptions`, `prefix_queries`, `prefix_hits` and `touched_blocks` count since the engine started; prefixes are
    counted in tokens. `resident_bytes` is the process's memory. `drafts` counts the steps of sequences that verified
    drafts, `draft_tokens` and `accepted_tokens` their tokens and those of them that were right. `swapped` preempted
    sequences have something in the swap space, of which the share `swap_usage`, 0 to 1, is taken.
    """

    token: int
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    touched_blocks: int = 0
    resident_bytes: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    swapped: int = 0
    swap_usage: float = 0.0


class Loading(Message, frozen=True):
    """Engine to worker, before `Ready`: the fraction of loading that is done, 0 to 1, and what is loaded now."""

    fraction: float
    what: str = ""


class Ready(Message, frozen=True):
    """Engine to worker: the model is loaded; the first message on every connection made after that, and sent again
    when something of it has changed.

    `asleep` is the level of its sleep, 0: it is awake. `embedding_size` 0: no embeddings; without `generates`, only
    embeddings or scores. `image_tokens` is the most placeholder tokens that one image may take; 0: no images.
    `block_size` is the tokens of a block of the prefix cache; 0: there is none.
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
    asleep: int = 0
    block_size: int = 0

    @property
    def images(self) -> bool:
        """Whether prompts may contain images."""
        return self.image_tokens > 0


class Managed(Message, frozen=True):
    """Engine to worker: a `Manage` was carried out, or begun (`sleep`); `error`: it was refused, for the operator."""

    token: int
    error: str | None = None


class Failed(Message, frozen=True):
    """Engine to worker: the model cannot be loaded; `why` is for the operator."""

    why: str


ToEngine = Submit | Cancel | Ping | Watch | Manage
FromEngine = Step | Cached | Pong | Loading | Ready | Managed | Failed
