"""The native backend: text and stop strings in this process, token ids in an engine.

Strategy:
- Start: the tokenizer loads here while the engines load the model. An engine runs in a process that this backend
  starts, in one that somebody else runs (`socket`, `engines`), or in a thread of this process.
- A request: check and compile its grammar, encode its prompts, process its images, submit one sequence per candidate,
  and turn the engine's outputs into events (`Answer`) until all sequences have ended.
- If an engine dies, `EngineClient` submits unfinished sequences to another one. If that one's tokens differ, a stream
  fails, and a non-streamed request, of which the client has seen nothing, is generated again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from backends.base import Capabilities, EngineState, Health
from backends.chat_template.effort import EFFORT, THINKING
from backends.native import embedding, scoring
from backends.native.answer import Answer
from backends.native.capabilities import capabilities, with_lora_adapters
from backends.native.checkpoints import reference
from backends.native.classification import Head, read_head
from backends.native.client.engine_client import EngineClient
from backends.native.client.transports import Connect
from backends.native.controls import Controls
from backends.native.engines import Engines, engine_commands, on_ray, shared_options
from backends.native.grammar.grammar import GrammarCheck
from backends.native.import_lock import with_import_lock
from backends.native.model_files import check_sizes
from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.multimodal.prompts import ImagePrompts
from backends.native.options import NativeOptions, problems_of, read_options
from backends.native.protocol.messages import Pong, Ready
from backends.native.rerankers import find_reranker
from backends.native.sentence_transformers import PLAIN, Recipe, RecipeError, generates, read_recipe
from backends.native.text.codec import TextCodec
from backends.native.tools.choice import offered_tools
from backends.native.tools.constraint import constraint
from backends.native.tools.reader import answer_reader
from backends.observation import OBSERVER
from backends.prompts import as_asked, conversation_of, images_of
from backends.truncation import encode_fitting
from schemas.errors import BackendUnavailable, InvalidRequest, UnsupportedFeature
from schemas.ir import ChatPrompt, Embed, Embeddings, Events, Generate, Tokenize, Tokens
from schemas.left_out import NAME, STRICT, left_out
from schemas.scores import Score, Scores


class NativeBackend:
    """Serves a model with the project's own engine.

    Args:
        name: the backend's name.
        options: a `NativeOptions`, or its fields.
        connect: replaces the transport of the engine, or of several by name, for tests.

    Raises:
        msgspec.ValidationError: the options are wrong.
    """

    Options = NativeOptions
    problems = staticmethod(problems_of)
    # Before a backend is made: the gateway has models fetched and converted once, not by each worker.
    prepare = staticmethod(reference.prepare_options)
    check = staticmethod(reference.check_options)
    # For a supervisor, which shares a backend's engines among workers.
    engine_commands = staticmethod(engine_commands)
    shared_options = staticmethod(shared_options)
    on_ray = staticmethod(on_ray)

    def __init__(
        self,
        name: str,
        options: NativeOptions | Mapping[str, Any] | None = None,
        *,
        connect: Connect | Mapping[str, Connect] | None = None,
    ) -> None:
        self.name = name
        self._started = False
        self._options = options if isinstance(options, NativeOptions) else read_options(options or {})
        self.capabilities = Capabilities(known=False, generates=_generates(self._options))
        self._recipe = PLAIN
        self._head: Head | None = None
        self._text: TextCodec | None = None
        self._grammars: GrammarCheck | None = None
        self._images: ImagePrompts | None = None
        self._engines = Engines(self._options, self._on_exit, connect)
        self._client = EngineClient(
            self._engines.connects,
            heartbeat=self._options.heartbeat,
            hung_after=self._options.hung_after,
            reconnect_timeout=self._options.reconnect_timeout,
            routing=self._options.routing,
        )
        self._client.on_ready = self._describe
        self.controls = Controls(self._client, self._options)

    async def start(self) -> None:
        """Load the tokenizer, and wait until the engine has loaded the model. May be called again after a failure.

        Raises:
            schemas.errors.BackendUnavailable: one of them cannot be loaded.
        """
        try:
            # The engines start loading now, while the tokenizer loads below.
            await self._engines.start(self._client)
            self._head, self._recipe = _read_folder(self._options)
            # In a thread: transformers takes seconds to import, and other backends must go on answering.
            self._text = text = await self._load_text()
            ready = await self._client.start()
            # An encoder generates nothing that a grammar could constrain.
            grammars = text.grammars(ready.vocab_size, ready.eos_token_ids) if ready.generates else None
            self._grammars = None if grammars is None else GrammarCheck(grammars)
            if ready.images:
                self._images = await asyncio.to_thread(
                    with_import_lock, ImagePrompts.load, self._options.model, self._options.images, ready.image_tokens
                )
            self.capabilities = capabilities(
                text,
                ready,
                self._head,
                self._recipe,
                grammars=grammars is not None,
                lora_folder=bool(self._options.lora_folder),
            )
            self._started = True
        # A cancelled start, too, must not leave an engine process behind.
        except BaseException:
            await self.aclose()
            raise

    async def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        """Generate; closing the generator frees the engine's sequences within a step."""
        self.controls.rouse()
        text, ready = self._require_started()
        family = text.form.of_answer(to_chat=any(isinstance(prompt, ChatPrompt) for prompt in as_asked(request)))
        # The grammar is checked before the prompts are encoded and images fetched: a bad one costs nothing more.
        grammar = await constraint(request, family, self._grammars)
        prompts = await self._encode_fitting(request, text, ready)
        in_reasoning = family.reasoning is not None and text.opens_reasoning(prompts[0].prompt_token_ids)
        if in_reasoning and grammar is not None:
            grammar = await constraint(request, family, self._grammars, in_reasoning=True)
        seed = request.sampling.seed
        answer = Answer(
            request,
            prompts,
            seed=secrets.randbits(64) if seed is None else seed,
            first_seq=self._client.reserve_seqs(len(prompts) * max(request.n, request.best_of or 1)).start,
            text=text,
            ready=ready,
            grammar=grammar,
            reader=partial(answer_reader, request, family, in_reasoning=in_reasoning),
        )
        in_flight = self._client.submit(answer.submits, conversation_of(request), request.destinations)
        try:
            while not answer.done:
                events, stopped = answer.feed(await in_flight.outputs())
                # No await between `feed` and `cancel`: no output of these sequences can be buffered in between.
                for seq in stopped:
                    in_flight.cancel(seq)
                if events:
                    yield events
        finally:
            # Also runs when the reader closes the generator (GeneratorExit), as after a client's disconnect.
            self._client.release(in_flight)
            if (observer := OBSERVER.get()) is not None:
                observer.engine_ran(in_flight.phases)

    def ignored(self, request: Generate | Embed | Tokenize) -> tuple[str, ...]:
        """What has no effect: unknown fields, what no model here does, and what the template does not take."""
        text = self._text
        if isinstance(request, Embed) or text is None:
            return left_out(request)
        prompts = as_asked(request) if isinstance(request, Generate) else (request.prompt,)
        chats = [prompt for prompt in prompts if isinstance(prompt, ChatPrompt)]
        foreign = left_out(request, (EFFORT, THINKING, NAME, STRICT))
        if isinstance(request, Generate):
            # vLLM's own, which the engine can do.
            done = {"return_token_ids": request.returns_ids, "prompt_logprobs": request.prompt_scores is not None}
            foreign = tuple(field for field in foreign if not done.get(field))
        return (*foreign, *(text.without_effect(chats[0], request.hints) if chats else ()))

    async def embed(self, request: Embed) -> Embeddings:
        """One vector per input, as the checkpoint's folder defines them; by default the mean of the hidden states."""
        self.controls.rouse()
        text, ready = self._require_started()
        return await embedding.embed(request, self._client, text, ready, self._recipe)

    async def score(self, request: Score) -> Scores:
        """The scores of pairs or texts, by the model's classification head, the cosine of embeddings, or MaxSim.

        Or, by `task`, sparse vectors or the vectors of tokens.
        """
        self.controls.rouse()
        text, ready = self._require_started()
        if self._head is not None:
            return await scoring.classify(request, self._client, text, ready, self._head)
        if request.task in ("sparse", "tokens"):
            make = scoring.rows if self._recipe.late is None else scoring.late_rows
            return await make(request, self._client, text, ready, self._recipe)
        compare = scoring.compare if self._recipe.late is None else scoring.max_similarities
        return await compare(request, self._client, text, ready, self._recipe)

    async def tokenize(self, request: Tokenize) -> Tokens:
        """The prompt's tokens."""
        text, _ = self._require_started()
        if request.tools and not text.can_call:
            raise UnsupportedFeature(f"The model '{request.model}' does not support tools yet.", feature="tools")
        prompt = request.prompt
        if isinstance(prompt, ChatPrompt):
            prompt = text.with_effort(prompt, request.hints)
        return await text.tokenize(prompt, request.tools, add_special_tokens=request.add_special_tokens)

    async def healthy(self) -> Health:
        """The engine's state; `loading` until this side has loaded, too."""
        # The engine may be ready before the image processor is loaded.
        health = self._client.health
        return health if self._started or health.status != "ready" else Health("loading")

    @property
    def engine_states(self) -> dict[str, EngineState | None]:
        """Each engine's latest answer to a ping, by the engine's name; None while it does not run."""
        return {
            link.name: _state(link.pong) if link.pong is not None and link.ready is not None else None
            for link in self._client.links
        }

    async def aclose(self) -> None:
        """Disconnect, and stop the engine if this backend started it. Idempotent."""
        # The client goes first: it must not connect again, or reject a request as poison, when the engine stops.
        await self._client.aclose()
        if self._images is not None:
            await self._images.aclose()
        await self._engines.aclose()
        if self._grammars is not None:
            self._grammars.close()
        if self._text is not None:
            self._text.close()

    async def _encode_fitting(self, request: Generate, text: TextCodec, ready: Ready) -> list[MultiModalInputs]:
        """The request's prompts as token ids; the oldest turns of a conversation are left out if that was asked for."""
        prompt = request.prompts[0]
        if request.overflow != "drop_turns" or not isinstance(prompt, ChatPrompt):
            return await self._encode_prompts(request, text)
        room = ready.context_length - (request.stopping.max_new_tokens or 1)

        async def encode(form: ChatPrompt) -> list[MultiModalInputs]:
            return await self._encode_prompts(replace(request, prompts=(form,)), text)

        return await encode_fitting(prompt, encode, lambda encoded: len(encoded[0].prompt_token_ids) <= room)

    async def _encode_prompts(self, request: Generate, text: TextCodec) -> list[MultiModalInputs]:
        """The request's prompts as token ids, with their processed images."""
        tools = offered_tools(request) if request.tools else ()
        truncate = request.truncate_prompt_tokens
        prompts = tuple(
            text.with_effort(prompt, request.hints) if isinstance(prompt, ChatPrompt) else prompt
            for prompt in as_asked(request)
        )
        has_images = any(map(images_of, prompts))
        if has_images and self._images is not None:
            # Before encoding: the placeholders are text that the tokenizer turns into their tokens.
            prompts = tuple(map(self._images.with_placeholders, prompts))
        encoded = [
            await text.encode_around(prompt, request.suffix, truncate=truncate)
            if request.suffix
            else await text.encode(prompt, tools, truncate=truncate)
            for prompt in prompts
        ]
        if not has_images:
            return [MultiModalInputs(ids) for ids in encoded]
        if self._images is None:
            raise UnsupportedFeature("The model does not support images.", feature="images")
        # Truncation might cut off a placeholder, and the images would no longer match the prompt.
        if truncate is not None:
            raise InvalidRequest("A prompt with images cannot be truncated.", param="truncate")
        return await self._images.expand(prompts, encoded)

    def expect_no_engine(self) -> None:
        """Let requests fail at once when the engine ends: whoever would start the next one is gone."""
        self._client.expect_no_engine()

    def _describe(self, ready: Ready) -> None:
        """Follow a change of the engine: its LoRA adapters may have been loaded or unloaded."""
        if self._started and ready.lora_adapters != self.capabilities.lora_adapters:
            self.capabilities = with_lora_adapters(self.capabilities, ready.lora_adapters)

    def _on_exit(self, engine: str, code: int) -> None:
        self._client.fail_start(f"the engine ended with exit code {code}", engine)

    async def _load_text(self) -> TextCodec:
        folder = str(Path(self._options.model, self._head.of.folder if self._head else self._recipe.folder))
        try:
            formats = (self._options.tool_format, self._options.reasoning_format)
            load = partial(TextCodec.load, folder, *formats, late=self._recipe.late)
            return await asyncio.to_thread(with_import_lock, load)
        except (OSError, ValueError) as error:
            raise BackendUnavailable(f"There is no usable tokenizer in {self._options.model}.") from error

    def _require_started(self) -> tuple[TextCodec, Ready]:
        # The last engine's description will do: while an engine is started again, requests are encoded and wait for it
        # in `EngineClient.submit`.
        if self._text is None or self._client.last_ready is None:
            raise BackendUnavailable("The engine is not ready.", retry_after=1.0)
        return self._text, self._client.last_ready


def _generates(options: NativeOptions) -> bool | None:
    """Whether the model generates text, as far as its folder tells; None: it does not."""
    try:
        return generates(options.model) if find_reranker(options.model, options.reranker) is None else False
    except RecipeError:
        return None  # it is said when the model is loaded


def _read_folder(options: NativeOptions) -> tuple[Head | None, Recipe]:
    """The classification head of a model, if it has one, else the recipe of its embeddings."""
    try:
        check_sizes(Path(options.model))
        head = read_head(options.model, options.reranker)
        return head, (None if head else read_recipe(options.model)) or PLAIN
    except (RecipeError, ValueError) as error:
        raise BackendUnavailable(str(error)) from None


def _state(pong: Pong) -> EngineState:
    return EngineState(
        running=pong.running,
        waiting=pong.waiting,
        kv_usage=1 - pong.free_blocks / pong.total_blocks if pong.total_blocks else 0.0,
        preemptions=pong.preemptions,
        prefix_queries=pong.prefix_queries,
        prefix_hits=pong.prefix_hits,
        kv_touched=pong.touched_blocks / pong.total_blocks if pong.total_blocks else 0.0,
        resident_bytes=pong.resident_bytes,
        drafts=pong.drafts,
        draft_tokens=pong.draft_tokens,
        accepted_tokens=pong.accepted_tokens,
        swapped=pong.swapped,
        swap_usage=pong.swap_usage,
    )
