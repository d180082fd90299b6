"""The native backend: text and stop strings here, token ids in an engine."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from backends.base import Capabilities, EngineState, Feature, Health
from backends.native import embedding
from backends.native.answer import Answer
from backends.native.client.channels import Connect, in_process, over_socket
from backends.native.client.engine_client import EngineLink
from backends.native.client.engine_process import EngineProcess, engine_command
from backends.native.client.inflight import Diverged
from backends.native.grammar.grammar import GrammarCheck, grammar_source
from backends.native.import_lock import in_turn
from backends.native.multimodal.inputs import MultiModalInputs
from backends.native.multimodal.prompts import ImagePrompts, images_of
from backends.native.options import NativeOptions
from backends.native.protocol.messages import Ready
from backends.native.sentence_transformers import PLAIN, Recipe, RecipeError, read_recipe
from backends.native.text.codec import TextCodec
from backends.native.text.tool_parser import offered, tool_grammar
from backends.prompts import as_asked
from schemas.errors import BackendUnavailable, InvalidRequest, UnsupportedFeature
from schemas.ir import Embed, Embeddings, Events, Generate, Prompt, Tokenize, Tokens

_ATTEMPTS = 3
"""At an answer that is not streamed, if engines die and the next do not say what those had said."""
_FEATURES = frozenset(
    {
        Feature.TOKEN_PROMPTS,
        Feature.LOGPROBS,
        Feature.TOP_LOGPROBS,
        Feature.PROMPT_LOGPROBS,
        Feature.LOGIT_BIAS,
        Feature.MIN_P,
        Feature.BEST_OF,
        Feature.WATERMARK,
    }
)


class NativeBackend:
    """Answers with a model of our own.

    Args:
        name: the backend's name.
        options: a `NativeOptions`, or its fields.
        connect: another way to an engine, for tests.

    Raises:
        msgspec.ValidationError: the options are wrong.
    """

    Options = NativeOptions

    def __init__(
        self,
        name: str,
        options: NativeOptions | Mapping[str, Any] | None = None,
        *,
        connect: Connect | None = None,
    ) -> None:
        self.name = name
        self.capabilities = Capabilities()
        self._started = False
        self._options = msgspec.convert(options or {}, NativeOptions)
        self._recipe = PLAIN
        self._text: TextCodec | None = None
        self._grammars: GrammarCheck | None = None
        self._images: ImagePrompts | None = None
        self._folder: Path | None = None
        self._process: EngineProcess | None = None
        self._link = EngineLink(
            connect or self._way(),
            heartbeat=self._options.heartbeat,
            hung_after=self._options.hung_after,
            patience=self._options.patience,
        )

    @staticmethod
    def engine_command(options: Mapping[str, Any], socket: Path) -> list[str] | None:
        """How to start the engine that these options ask for, for whoever runs one for several workers.

        They are then given `socket` among their options. None if no engine process is to be started.

        Raises:
            msgspec.ValidationError: the options are wrong.
        """
        given = msgspec.convert(options, NativeOptions)
        shared = given.engine == "process" and given.socket is None
        return engine_command(given.engine_options, socket) if shared else None

    async def start(self) -> None:
        """Load the tokenizer, and wait until the engine has loaded the model. If it failed, it may be tried again.

        Raises:
            schemas.errors.BackendUnavailable: one of them cannot be loaded.
        """
        try:
            if self._folder is not None:
                self._folder.mkdir(mode=0o700)
            if self._process is not None:
                await self._process.start()
            self._recipe = _recipe(self._options.model)
            self._text = text = await self._load_text()
            ready = await self._link.start()
            grammars = text.grammars(ready.vocab_size, ready.eos_token_ids) if ready.generates else None
            self._grammars = None if grammars is None else GrammarCheck(grammars)
            if ready.images:
                self._images = await asyncio.to_thread(
                    in_turn, ImagePrompts.load, self._options.model, self._options.images, ready.image_tokens
                )
            self.capabilities = _capabilities(text, ready, grammars=grammars is not None)
            self._started = True
        except BaseException:
            await self.aclose()
            raise

    async def generate(self, request: Generate) -> AsyncGenerator[Events, None]:
        """Generate; closing the generator frees the engine's sequences within a step."""
        text, ready = self._parts()
        grammar = await self._grammar(request, text)
        prompts = await self._prompts(request, text)
        seed = request.sampling.seed
        seed = secrets.randbits(64) if seed is None else seed
        sequences = len(prompts) * max(request.n, request.best_of or 1)
        started = False
        for attempt in range(_ATTEMPTS):
            answer = Answer(
                request,
                prompts,
                seed=seed,
                first_seq=self._link.reserve(sequences).start,
                text=text,
                ready=ready,
                grammar=grammar,
                started=started,
            )
            exchange = self._link.submit(answer.submits)
            try:
                while not answer.done:
                    events, stopped = answer.feed(await exchange.outputs())
                    for seq in stopped:
                        exchange.cancel(seq)
                    if events:
                        started = True
                        yield events
                return
            except Diverged:
                if request.stream or attempt == _ATTEMPTS - 1:
                    raise
            finally:
                self._link.release(exchange)

    async def embed(self, request: Embed) -> Embeddings:
        """Vectors as the model's folder wants them made; if it says nothing, the mean of the last hidden states."""
        text, ready = self._parts()
        return await embedding.embed(request, self._link, text, ready, self._recipe)

    async def tokenize(self, request: Tokenize) -> Tokens:
        """The prompt's tokens."""
        text, _ = self._parts()
        if request.tools and not text.can_call:
            raise UnsupportedFeature(f"The model '{request.model}' does not support tools yet.", feature="tools")
        return await text.tokenize(request.prompt, request.tools, add_special_tokens=request.add_special_tokens)

    async def healthy(self) -> Health:
        """What the link to the engine last heard; before our own side is loaded too, nothing can be asked."""
        health = self._link.health
        return health if self._started or health.status != "ready" else Health("loading")

    @property
    def engine_state(self) -> EngineState | None:
        """The engine's last answer to a ping."""
        pong = self._link.pong
        if pong is None or self._link.ready is None:
            return None
        return EngineState(
            running=pong.running,
            waiting=pong.waiting,
            kv_usage=1 - pong.free_blocks / pong.total_blocks if pong.total_blocks else 0.0,
            preemptions=pong.preemptions,
            prefix_queries=pong.prefix_queries,
            prefix_hits=pong.prefix_hits,
        )

    async def aclose(self) -> None:
        """Give up the link, and stop the engine if it is ours. Idempotent."""
        await self._link.aclose()
        if self._images is not None:
            await self._images.aclose()
        if self._process is not None:
            await self._process.aclose()
        if self._grammars is not None:
            self._grammars.close()
        if self._text is not None:
            self._text.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _grammar(self, request: Generate, text: TextCodec) -> str | None:
        """What the answer must be, checked."""
        if request.tools and offered(request):
            source, param = tool_grammar(request, tags_are_tokens=text.has_call_tokens), "tools"
        else:
            source, param = None if request.grammar is None else grammar_source(request.grammar), "response_format"
        if source is None:
            return None
        if self._grammars is None:
            raise UnsupportedFeature("The model's tokenizer does not allow for grammars.", feature="grammar")
        await self._grammars.check(source, param)
        return source

    async def _prompts(self, request: Generate, text: TextCodec) -> list[MultiModalInputs]:
        """The request's prompts as the model reads them, with their pictures, if they have any."""
        tools, truncate = offered(request) if request.tools else (), request.truncate_prompt_tokens
        asked = tuple(map(self._images.marked, as_asked(request))) if self._images else as_asked(request)
        encoded = [
            await text.encode_around(prompt, request.suffix, truncate=truncate)
            if request.suffix
            else await text.encode(prompt, tools, truncate=truncate)
            for prompt in asked
        ]
        return await self._expand(asked, encoded, truncate)

    async def _expand(
        self, asked: Sequence[Prompt], encoded: Sequence[tuple[int, ...]], truncate: int | None
    ) -> list[MultiModalInputs]:
        """The prompts with their pictures, if they have any."""
        if not any(map(images_of, asked)):
            return [MultiModalInputs(ids) for ids in encoded]
        if self._images is None:
            raise UnsupportedFeature("The model does not support images.", feature="images")
        if truncate is not None:
            raise InvalidRequest("A prompt with images cannot be truncated.", param="truncate")
        return await self._images.expand(asked, encoded)

    def _way(self) -> Connect:
        """How the engine is reached; an engine process of our own is set up, but not started."""
        options = self._options
        if options.socket is not None:
            return over_socket(options.socket)
        if options.engine == "inprocess":
            return in_process(options.engine_options)
        self._folder = Path(tempfile.gettempdir(), f"engine-{secrets.token_hex(8)}")
        socket = self._folder / "socket"
        self._process = EngineProcess(engine_command(options.engine_options, socket), self._on_exit)
        return over_socket(str(socket))

    def _on_exit(self, code: int) -> None:
        self._link.abandon(f"the engine ended with exit code {code}")

    async def _load_text(self) -> TextCodec:
        try:
            folder = str(Path(self._options.model, self._recipe.folder))
            return await asyncio.to_thread(in_turn, TextCodec.load, folder)
        except (OSError, ValueError) as error:
            raise BackendUnavailable(f"There is no usable tokenizer in {self._options.model}.") from error

    def _parts(self) -> tuple[TextCodec, Ready]:
        if self._text is None or self._link.known is None:
            raise BackendUnavailable("The engine is not ready.", retry_after=1.0)
        return self._text, self._link.known


def _recipe(model: str) -> Recipe:
    try:
        return read_recipe(model) or PLAIN
    except RecipeError as error:
        raise BackendUnavailable(str(error)) from None


def _capabilities(text: TextCodec, ready: Ready, *, grammars: bool) -> Capabilities:
    can = {
        Feature.CHAT: text.has_template,
        Feature.GRAMMAR: grammars,
        Feature.TOOLS: text.can_call,
        Feature.IMAGES: ready.images,
        Feature.ADAPTERS: bool(ready.adapters),
        Feature.SUFFIX: text.can_infill,
    }
    return Capabilities(
        features=_FEATURES | {feature for feature, able in can.items() if able},
        generates=ready.generates,
        embeddings=ready.embedding_size > 0,
        tokenize=True,
        context_length=ready.context_length,
        vocab_size=ready.vocab_size,
        tokenizer=text.vocabulary.digest,
        dtype=ready.dtype,
        device=ready.device,
        adapters=ready.adapters,
    )
