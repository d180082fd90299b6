"""A checkpoint's layer for multi-token prediction (MTP, arXiv 2412.19437).

From the hidden state at a token and the next token it predicts the token after that.

transformers has the layer's module and reads its weights (`MtpModel`); here it attends to pages. Its keys and values
are one more layer of the model's own KV cache. They stand where the token whose hidden state they are made of stands.
"""

from __future__ import annotations

import re
from array import array
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from msgspec.structs import replace
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from backends.native.engine.attention.adapted import adapt_attention
from backends.native.engine.attention.interface import NAME
from backends.native.engine.attention.kv_cache import KVCache
from backends.native.engine.devices import OUT_OF_MEMORY
from backends.native.engine.errors import LoadError
from backends.native.engine.formats.tensors import has_tensors_by_name, read_some
from backends.native.engine.layers.fuse_model import fuse_modules
from backends.native.engine.layers.packed_linear import pack_linears
from backends.native.engine.loading.self_check import BLOCK_SIZE, TOLERANCE, blocks_of, on_small_copy, prompts, steps_of
from backends.native.engine.loading.tiny_copy import widen
from backends.native.engine.loading.weights import LoadedModel
from backends.native.engine.runner.pack import Pack, pack_of
from backends.native.engine.runner.packed import PackedRunner
from backends.native.engine.scheduling.sequence import Work


class _OfWantedRows(nn.Module):
    """Replaces an MLP or experts: runs them for the wanted rows of a step, and gives 0 for the others.

    Attributes:
        rows: those that are wanted, [wanted].
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.rows: Tensor | None = None

    def forward(self, states: Tensor) -> Tensor:
        """[1, tokens, width] to the same."""
        if self.rows is None or len(self.rows) == states.shape[1]:
            found: Tensor = self.module(states)
            return found
        return torch.zeros_like(states).index_copy_(1, self.rows, self.module(states.index_select(1, self.rows)))


class MtpLayer:
    """The layer, to be run beside a model that runs packed.

    Args:
        module: of transformers; its attention is set to ours.
        model: the model that it belongs to, whose embeddings and output layer it uses.
    """

    def __init__(self, module: Any, model: Any) -> None:
        module.set_attn_implementation(NAME)
        adapt_attention(module.layers)
        for each in module.layers.modules():
            if isinstance(getattr(each, "layer_idx", None), int):
                each.layer_idx += model.config.get_text_config(decoder=True).num_hidden_layers
        # Not `module`, which has the model's output layer: packed, its plain weight would stay in memory.
        self._layers, self._rotary = module.layers, module.rotary_emb
        self._model = model
        self._mlp: _OfWantedRows | None = None

    def replace_parts(self, longest: int, least: int | None = None) -> None:
        """Replace parts of the layer as those of its model are replaced.

        Args:
            longest: the most tokens of a sequence.
            least: see `pack_linears`.
        """
        fuse_modules(self._layers, longest)
        pack_linears(self._layers, least)
        block = self._layers[0].mtp_block
        if isinstance(getattr(block, "mlp", None), nn.Module):
            block.mlp = self._mlp = _OfWantedRows(block.mlp)

    def run(self, runner: PackedRunner, pack: Pack, states: Tensor) -> Tensor:
        """Predict behind the tokens of a pack, and store their keys and values.

        Args:
            runner: has the cache.
            pack: positions in sequences, each with the token that follows it; of each the last row is wanted.
            states: [tokens, hidden_size], the hidden state at each of the positions.

        Returns:
            [wanted rows, hidden_size], for `logits`. Each also stands for the hidden state at the next position.
        """
        # Of the tokens before the last of a sequence nothing but keys and values is needed.
        alone = replace(pack, counts=array("q", [1]) * len(pack.rows))
        return runner.run_beside(alone, partial(self._forward, states=states))

    def logits(self, states: Tensor) -> Tensor:
        """[rows, hidden_size] of `run` to [rows, vocabulary]."""
        # The model's own, which may have been replaced since the layer was loaded.
        logits: Tensor = self._model.get_output_embeddings()(states)
        return logits

    def _forward(self, tokens: Tensor, places: Tensor, rows: Tensor, *, states: Tensor) -> Tensor:
        """See `PackedRunner.run_beside`."""
        if self._mlp is not None:
            self._mlp.rows = rows
        embeds = self._model.get_input_embeddings()(tokens.unsqueeze(0))
        positions = (places + 1).unsqueeze(0)  # those of the tokens
        found: Tensor = self._layers[0](
            embeds,
            states.unsqueeze(0),
            position_embeddings=self._rotary(embeds, position_ids=positions),
            attention_mask=None,
            position_ids=positions,
            past_key_values=None,
        )
        return found[0]


def load_mtp(loaded: LoadedModel, folder: str, *, replaces: bool = True) -> MtpLayer:
    """Load the layer that a checkpoint has beside those of its model, before layers of that are replaced.

    Args:
        loaded: the model.
        folder: of the checkpoint.
        replaces: whether parts of the layer may be replaced, too; they are if a small copy of it agrees.

    Raises:
        LoadError: it has none, or one that is not run here.
    """
    model, kind = loaded.model, loaded.config.model_type
    layers = getattr(loaded.config, "num_mtp_layers", None) or 0
    if layers != 1:
        raise LoadError(f"draft_model = 'mtp' is for models with one layer for it; this {kind} has {layers}.")
    if not has_tensors_by_name(Path(folder)):
        raise LoadError(f"draft_model = 'mtp' is not for GGUF files and mxfp4, which '{folder}' holds.")
    why = on_small_copy(model, partial(_why_small_copy_differs, replaces=replaces))
    if why is not None and replaces:
        # The replaced parts may be at fault.
        replaces, why = False, on_small_copy(model, partial(_why_small_copy_differs, replaces=False))
    if why is not None:
        raise LoadError(f"draft_model = 'mtp' cannot be had with this {kind}: {why}.")
    try:
        module = _read_module(loaded, Path(folder))
    except OUT_OF_MEMORY as error:
        raise LoadError(f"The MTP layer of '{folder}' does not fit into the memory of {model.device}.") from error
    except Exception as error:  # transformers and safetensors raise many kinds, all with the file's fault in them
        raise LoadError(f"The MTP layer of '{folder}' cannot be loaded: {error}") from error
    layer = MtpLayer(module, model)
    if replaces:
        layer.replace_parts(loaded.context_length)
    return layer


def _read_module(loaded: LoadedModel, folder: Path) -> Any:
    """The layer as transformers reads it; of a quantized checkpoint from a file with the weights that it stands for."""
    model = loaded.model
    # By these names transformers finds the weights; its own patterns are those of models of one size.
    names = rf"\.layers\.{loaded.config.num_hidden_layers}\."
    model._keys_to_ignore_on_load_unexpected = [names]  # noqa: SLF001
    expanded = read_some(folder, model.dtype, re.compile(names).search)
    with TemporaryDirectory() as apart:
        if expanded is not None:
            save_file(expanded, Path(apart, "model.safetensors"))
        model.config.name_or_path = str(folder if expanded is None else apart)
        return MtpModel.from_pretrained(model, device_map={"": model.device}).eval()


def _why_small_copy_differs(small: Any, *, replaces: bool) -> str | None:
    """Run the layer of a small copy by transformers' own forward and packed; why they differ, or None if they agree."""
    with torch.random.fork_rng(), torch.device(small.device):
        torch.manual_seed(0)
        module = MtpModel(small, 1).float().eval()
        widen(module)
        tokens = prompts(small.device)
        states = [torch.randn(len(row), module.config.hidden_size) for row in tokens]
    module.set_attn_implementation("eager")
    steps = steps_of(tokens)
    expected = torch.stack([torch.cat([_plain_logits(module, work, states) for work in works]) for works in steps])
    runner, layer, found = PackedRunner(small, KVCache(blocks_of(tokens), BLOCK_SIZE)), MtpLayer(module, small), []
    if replaces:
        layer.replace_parts(max(map(len, tokens)), least=1)
    for works in steps:
        parts = [states[work.sequence.arrival][work.start : work.start + work.count] for work in works]
        found.append(layer.logits(layer.run(runner, pack_of(works, BLOCK_SIZE), torch.cat(parts))))
    error, scale = float((torch.stack(found) - expected).abs().max()), float(expected.abs().max())
    # `not <=` instead of `>`: NaN fails, too.
    return f"its small copy predicts otherwise ({error:.1e} of {scale:.1e})" if not error <= TOLERANCE * scale else None


def _plain_logits(module: Any, work: Work, states: list[Tensor]) -> Tensor:
    """[1, vocabulary] by transformers' own forward over all tokens up to the end of `work`."""
    end, device = work.start + work.count, states[0].device
    logits: Tensor = module(
        input_ids=torch.tensor([work.sequence.tokens[:end]], device=device),
        last_hidden_states=states[work.sequence.arrival][:end].unsqueeze(0),
        attention_mask=torch.ones(1, end, dtype=torch.int64, device=device),
        position_ids=torch.arange(1, end + 1, device=device).unsqueeze(0),
        mtp_cache=MtpCache(config=module.config),
    )[1]
    return logits[0]
