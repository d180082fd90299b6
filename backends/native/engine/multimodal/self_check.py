"""The self-check at load of a multimodal model without a module of its own: do images give the model's own logits?

A small random copy of the same class runs one image twice: by transformers' own forward, and as the engine runs it, in
chunks that cut the image. The logits must agree and must depend on the image, or agreement would prove nothing. The
arguments that transformers passes to the copy's decoder say whether tokens see later ones: then the tokens of an image
see each other, and it is not cut. They also give the reason for models that cannot be served.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

import msgspec
import torch
from torch import Tensor

from backends.images import DecodedImage
from backends.native.engine.attention.interface import text_part
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.loading.tiny_copy import VOCAB, shrunken_copy
from backends.native.engine.runner.embedder import Embedder
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.sequence import Sequence as EngineSequence
from backends.native.engine.scheduling.sequence import Work
from backends.native.engine.scheduling.unchunked import image_spans
from backends.native.multimodal.inputs import ImageItem, MultiModalInputs
from backends.native.multimodal.interfaces import SupportsMultiModal
from backends.native.multimodal.processing import BaseMultiModalProcessor, NotServed
from backends.native.multimodal.registry import Registered
from backends.native.protocol.messages import Submit, Unchunked

_BLOCK_SIZE = 8
_IMAGE = VOCAB - 1  # placeholder token of the small copy
_SIZE = (64, 48)
_MAX_PARAMETERS = 300_000_000  # towers keep their width, from which other sizes are derived
_BEFORE, _AFTER = (5, 9, 7), (11, 6, 12, 8)
_TOLERANCE, _SENSITIVITY = 1e-4, 1e-3  # relative to the largest logit, as in `loading.self_check`
_USUAL_ARGUMENTS = {"inputs_embeds", "attention_mask", "position_ids", "past_key_values", "use_cache", "cache_position"}
_USUAL_ARGUMENTS |= {"input_ids", "output_attentions", "output_hidden_states", "return_dict"}


def find_unchunked(model: Any, known: Registered, processor: BaseMultiModalProcessor[Any]) -> Unchunked:
    """What of a prompt attends in both directions, if images for `model` are served rightly with `known`.

    Raises:
        processing.NotServed: they are not.
    """
    try:
        items = [processor.process(_noise(seed)) for seed in (1, 2)]
        target = known.dummy_inputs(processor.info).get_dummy_tokens({"image": 1})
        prompts = [_renamed(processor.apply(target, [item])) for item in items]
    except NotServed:
        raise
    except Exception as error:  # processors of transformers raise errors of any kind
        raise NotServed(f"its processor fails with an image ({type(error).__name__}: {error})") from error
    whys: list[str] = []
    for few_heads, few_layers in product((True, False), repeat=2):
        try:
            with torch.inference_mode():
                small = shrunken_copy(
                    model,
                    few_heads=few_heads,
                    few_layers=few_layers,
                    image_token_id=_IMAGE,
                    max_parameters=_MAX_PARAMETERS,
                )
                return _compare(small, known.wrap(small), prompts, items)
        except NotServed:
            raise
        except Exception as error:  # model classes raise errors of any kind for sizes that do not suit them
            whys.append(f"{type(error).__name__}: {error}")
    raise NotServed(f"a small copy of it fails with an image ({'; '.join(whys)})")


def _noise(seed: int) -> DecodedImage:
    width, height = _SIZE
    pixels = torch.randint(0, 256, (height * width * 3,), generator=torch.Generator().manual_seed(seed))
    return DecodedImage(width, height, bytearray(pixels.tolist()), bytes([seed]))


def _renamed(inputs: MultiModalInputs) -> MultiModalInputs:
    """The prompt of one image with text before and after it, in the vocabulary of the small copy."""
    (feature,) = inputs.features
    embeds = range(feature.offset, feature.offset + feature.length)
    is_embed = dict(zip(embeds, feature.is_embed or b"\1" * feature.length, strict=True))
    ids = (_IMAGE if is_embed.get(at) else 2 + id % (_IMAGE - 2) for at, id in enumerate(inputs.prompt_token_ids))
    moved = msgspec.structs.replace(feature, offset=feature.offset + len(_BEFORE))
    return MultiModalInputs((*_BEFORE, *ids, *_AFTER), (moved,))


def _compare(
    small: Any, wrapper: SupportsMultiModal, prompts: Sequence[MultiModalInputs], items: Sequence[ImageItem]
) -> Unchunked:
    embedder = Embedder(wrapper, 1)
    (feature,) = prompts[0].features
    made, wanted = len(embedder.encode(feature)), prompts[0].prompt_token_ids.count(_IMAGE)
    if made != wanted:
        raise NotServed(f"its encoder makes {made} embeddings for {wanted} placeholder tokens")
    with _watching(small) as given:
        plain, other = (_plain(small, *each) for each in zip(prompts, items, strict=True))
    _check_arguments(given, wrapper.deeper_arguments)
    # How far tokens see is not read from the masks: the logits below tell whether this guess is right.
    embedder.unchunked = "image" if _sees_later(given) else "nothing"
    # After the plain runs: the packed runner sets another attention implementation on the same model.
    error = float((_packed(small, prompts[0], embedder) - plain).abs().max())
    scale, moved = float(plain.abs().max()), float((plain[-1] - other[-1]).abs().max())
    if not error <= _TOLERANCE * scale:
        raise NotServed(f"its small copy gives other logits when packed ({error:.1e} of {scale:.1e})")
    if not moved >= max(_SENSITIVITY * scale, 10 * error):
        raise NotServed(f"its small copy hardly depends on the image ({moved:.1e} of {scale:.1e})")
    return embedder.unchunked


@contextmanager
def _watching(model: Any) -> Iterator[dict[str, Any]]:
    """Record the keyword arguments of the decoder's calls."""
    given: dict[str, Any] = {}
    hook = model.get_decoder().register_forward_pre_hook(lambda _, __, named: given.update(named), with_kwargs=True)
    try:
        yield given
    finally:
        hook.remove()


def _check_arguments(given: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse a decoder that takes more of an image than embeddings and `known` arguments."""
    more = sorted(name for name, value in given.items() if value is not None and name not in _USUAL_ARGUMENTS | known)
    deep = [name for name in more if "deepstack" in name or isinstance(given[name], list | tuple)]
    if deep:
        raise NotServed(
            f"its decoder takes features of images at several layers ({', '.join(deep)}), not only embeddings"
        )


def _sees_later(given: Mapping[str, Any]) -> bool:
    """Whether a query of the decoder's masks, [1, heads, queries, keys], sees a later key."""
    masks = given.get("attention_mask")
    found = masks.values() if isinstance(masks, Mapping) else [masks]
    # Masks are True, or 0, where a key is visible.
    seen = (
        mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
        for mask in found
        if isinstance(mask, Tensor) and mask.dim() == 4
    )
    return any(bool(each.triu(1).any()) for each in seen)


def _plain(model: Any, inputs: MultiModalInputs, item: ImageItem) -> Tensor:
    """Logits [tokens, vocabulary] by transformers' own forward."""
    text_part(model).set_attn_implementation("eager")
    ids = torch.tensor([inputs.prompt_token_ids], device=model.device)
    given: dict[str, Any] = {name: torch.from_numpy(value).to(model.device) for name, value in item.arrays.items()}
    names = inspect.signature(model.forward).parameters
    kinds = (ids == _IMAGE).int()
    given |= {name: kinds for name in ("token_type_ids", "mm_token_type_ids") if name in names}
    logits: Tensor = model(input_ids=ids, **given, use_cache=False).logits[0]
    return logits


def _packed(model: Any, inputs: MultiModalInputs, embedder: Embedder) -> Tensor:
    """Logits [tokens, vocabulary] by the packed runner."""
    length = len(inputs.prompt_token_ids)
    blocks = -(-length // _BLOCK_SIZE)
    runner = PackedRunner(model, KVCache(blocks, _BLOCK_SIZE), embedder=embedder)
    submit = Submit(0, inputs.prompt_token_ids, 1, prompt_logprobs=0, features=inputs.features)
    sequence = EngineSequence(0, submit, 0)
    sequence.blocks.extend(range(blocks))
    cuts = [0, length // 3, length // 2, length]  # inside the image, and mostly inside a block
    if embedder.unchunked == "image":
        spans = image_spans(inputs.features)
        cuts = [0, spans[0][0], *(stop for _, stop in spans), length]
    works = [Work(sequence, start, end - start, samples=end == length) for start, end in pairwise(cuts)]
    return torch.cat([runner.run([work]) for work in works])
