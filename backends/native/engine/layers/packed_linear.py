"""Linear layers and experts of mixtures on CPUs, whose weights are kept in the blocked order that oneDNN multiplies in.

A plain `nn.Linear` has its weight reordered at every call, or is multiplied by a slower routine. For the few rows of a
decode step the packed layer is up to three times as fast, and with `SkinnyGemm`, where it can be used, half as fast
again. Where oneDNN has no bfloat16, `SkinnyGemm` multiplies all rows of it. The product is the same. A packed weight
can only be multiplied with, as Mamba does for its time steps; layers whose `weight` the module around them reads
otherwise stay as they are, and the self-check finds what was overlooked.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from backends.native.engine.attention.interface import text_part
from backends.native.engine.kernels.gemv import (
    BLOCK,
    SkinnyGemm,
    address_of,
    blocked,
    onednn_multiplies,
    size_of,
    takes_all_rows,
)
from backends.native.engine.layers.fusion import alike, replace_modules
from backends.native.machine import use_huge_pages

# oneDNN chooses its order for so many rows; other numbers of rows work with it, too.
_ROWS = 32
# A weight of fewer numbers than 2^16 is multiplied as fast unpacked (measured with one row). It is packed nevertheless:
# packed, a row has the same sums whatever other rows it is multiplied with.
_LEAST = 2**12
# In bfloat16 smaller ones take half as long packed, from two rows on; in float32 longer. Towers for images multiply too
# many rows for that.
_LEAST_OF_TEXT = 2**9
# Experts of fewer numbers take up to 1.7 times as long packed where oneDNN multiplies a few rows (measured with 2^16).
_LEAST_BY_ONEDNN = 2**17
# Fewer rows than these are padded, since they take oneDNN longer: one row a seventh longer in bfloat16, a quarter
# longer in float32 (measured).
_FEWEST_ROWS = 4
# How far the numbers of experts may be from the model's own, in roundings of the largest in a row: two sums in another
# order, one after the other. Those of bfloat16 are taken in float32.
_ROUNDINGS = {torch.float32: 32, torch.bfloat16: 4}
# Rows of all experts whose activation is computed at once, which is up to a third faster for few. Of more an expert's
# are still in the cache when its own follows.
_MOST_GATED_TOGETHER = 512
# Bytes of a weight from which on it is put into huge pages.
_LEAST_IN_HUGE_PAGES = 2**20


class PackedWeight(NamedTuple):
    """What models' code may do with a packed weight.

    Attributes:
        dtype: of its numbers.
        layer: whose weight it is.
    """

    dtype: torch.dtype
    layer: PackedLinear

    def __matmul__(self, columns: Tensor) -> Tensor:
        """The weight by [..., in_features, columns]: [..., out_features, columns]."""
        return self.layer.product(columns.transpose(-1, -2), biased=False).transpose(-1, -2)


class PackedLinear(nn.Module):
    """Replaces a linear layer."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bias = linear.bias
        # `linear` itself is not kept: with its unpacked weight the model would be in memory twice.
        self.weight = PackedWeight(linear.weight.dtype, self)
        weight = linear.weight.detach()
        self._bias = None if linear.bias is None else linear.bias.detach()
        padding = -self.out_features % BLOCK
        if padding:
            # `SkinnyGemm` takes whole blocks of outputs, and with outputs of 0 beside them it is faster than oneDNN.
            padded = functional.pad(weight, (0, 0, 0, padding))
            self._packed = _reordered(padded)
            self.skinny_gemm = SkinnyGemm.of(padded, self._packed, self.bias, self.out_features)
            if self.skinny_gemm is not None:
                self._bias = None if self._bias is None else functional.pad(self._bias, (0, padding))
                return
        self._packed = _reordered(weight)
        self.skinny_gemm = SkinnyGemm.of(weight, self._packed, self.bias)

    def settle(self) -> None:
        """Put the weight into huge pages, once unpacked ones are freed; it is read a tenth faster (measured)."""
        size = size_of(self._packed)
        if size >= _LEAST_IN_HUGE_PAGES:
            use_huge_pages(address_of(self._packed), size)

    def forward(self, rows: Tensor) -> Tensor:
        """[..., in_features] to [..., out_features]."""
        return self.product(rows)

    def product(self, rows: Tensor, *, biased: bool = True) -> Tensor:
        """[..., in_features] to [..., out_features]; the bias is added if `biased`."""
        # An expert of a mixture may get no row.
        if not rows.numel():
            return rows.new_empty(*rows.shape[:-1], self.out_features)
        if self.skinny_gemm is not None and self.skinny_gemm.takes(rows):
            return self.skinny_gemm.multiply(rows, biased=biased)
        count = rows.numel() // self.in_features
        if count >= _FEWEST_ROWS:
            return self._multiply(rows, self._bias if biased else None)
        padded = functional.pad(rows.reshape(count, -1), (0, 0, 0, _FEWEST_ROWS - count))
        product = self._multiply(padded, self._bias if biased else None)
        return product[:count].view(*rows.shape[:-1], self.out_features)

    def _multiply(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, bias, "none", [], "")  # noqa: SLF001
        return product[..., : self.out_features].contiguous()


class PackedExperts(nn.Module):
    """Replaces the experts of a mixture that transformers holds as tensors [experts, ...], each with packed layers.

    transformers multiplies unpacked weights, and a row's sums depend on how many rows an expert gets.

    Args:
        experts: the model's own module, which keeps its activation and gives its weights up by `release`.
    """

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.experts = experts
        # Lists, not `ModuleList`s: a model may have thousands, which nobody looks for by name.
        self._up, self._down = ([PackedLinear(each) for each in _linears_of(experts, name)] for name in _names(experts))
        # Before 5.20, transformers has none and no name for it.
        self._has_norm = getattr(experts, "has_post_expert_norm", False)
        # transformers multiplies in it whatever the states and activations are in.
        self._dtype = self._up[0].weight.dtype

    @property
    def layers(self) -> list[PackedLinear]:
        """Those of all experts: first those of the inputs, then those of the outputs."""
        return [*self._up, *self._down]

    @classmethod
    @torch.inference_mode()
    def of(cls, module: Any, least: int | None = None) -> PackedExperts | None:
        """A replacement for `module`, whose weights are dropped; None if it is no such module, or computes otherwise.

        Args:
            module: any module.
            least: the fewest numbers of an expert's weight that is packed; None: those from which it pays.
        """
        # `use_experts_implementation` of transformers sets them.
        if not all(hasattr(module, name) for name in ("has_gate", "has_bias", "is_transposed")):
            return None
        weights: list[Any] = [getattr(module, name, None) for name in _names(module)]
        if any(not isinstance(each, Tensor) or each.dim() != 3 for each in weights):
            return None
        if not all(_is_packable(each, each.shape[1 if module.is_transposed else 2]) for each in weights):
            return None
        smallest = min(each[0].numel() for each in weights)
        if smallest < (_LEAST if least is None else least):
            return None
        packed = cls(module)
        if least is None and smallest < _LEAST_BY_ONEDNN and any(each.skinny_gemm is None for each in packed.layers):
            return None
        if not _is_equal(module, packed, weights[0].dtype):
            return None
        for name in _names(module):
            setattr(module, name, None)
        return packed

    def forward(self, rows: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """[rows, width] to the same.

        Args:
            rows: the tokens' states.
            chosen: [rows, experts of a token], by number.
            shares: likewise, the factor of an expert's output.
        """
        if not len(rows):
            return torch.empty_like(rows)
        # Step 1: every expert's rows one after the other.
        numbers, order = chosen.flatten().sort(stable=True)
        counts = {number: count for number, count in enumerate(numbers.bincount().tolist()) if count}
        given = torch.split(rows.to(self._dtype)[order // chosen.shape[1]], list(counts.values()))
        # Step 2: the experts.
        joined = (self._up[number].product(each) for number, each in zip(counts, given, strict=True))
        inner: Iterable[Tensor]
        if len(order) > _MOST_GATED_TOGETHER:
            inner = map(self._activate, joined)
        else:
            inner = torch.split(self._activate(torch.cat(list(joined))), list(counts.values()))
        products = torch.cat([self._down[number].product(each) for number, each in zip(counts, inner, strict=True)])
        if self._has_norm:
            products = self.experts.post_expert_norm(products)
        # Step 3: every row's sum, in its own order of experts.
        products = products * shares.flatten()[order].unsqueeze(-1)
        ordered = torch.empty_like(products)
        ordered[order] = products
        return ordered.view(*chosen.shape, -1).sum(dim=1).to(rows.dtype)

    def _activate(self, joined: Tensor) -> Tensor:
        own = self.experts
        activated: Tensor = own._apply_gate(joined) if own.has_gate else own.act_fn(joined)  # noqa: SLF001
        return activated.to(self._dtype)


def _names(experts: Any) -> tuple[str, str]:
    """Of an experts' module's weights, in the order of their use."""
    return ("gate_up_proj" if experts.has_gate else "up_proj"), "down_proj"


def _linears_of(experts: Any, name: str) -> Iterator[nn.Linear]:
    """Each expert's part of a weight as a layer, which shares its memory."""
    weights = getattr(experts, name).detach()
    biases = getattr(experts, f"{name}_bias").detach() if experts.has_bias else repeat(None, len(weights))
    for each, bias in zip(weights, biases, strict=True):
        weight = each.T if experts.is_transposed else each
        outputs, inputs = weight.shape
        linear = nn.Linear(inputs, outputs, bias=bias is not None, device="meta")  # no memory for initial weights
        linear.weight = nn.Parameter(weight, requires_grad=False)
        if bias is not None:
            linear.bias = nn.Parameter(bias, requires_grad=False)
        yield linear


def _is_equal(experts: Any, packed: PackedExperts, dtype: torch.dtype) -> bool:
    """Whether both give the same for ordinary rows, and for one so large that a clamp would show."""
    layers = packed.layers
    last = len(layers) // 2 - 1
    rows = torch.randn(3, layers[0].in_features, generator=torch.Generator().manual_seed(0))
    rows = (rows * torch.tensor([[1.0], [1.0], [1e3]])).to(dtype)
    chosen, shares = torch.tensor([[0, last], [last, 0], [last // 2, last]]), torch.tensor([[0.75, 0.25]] * 3).to(dtype)
    try:
        expected = experts(rows, chosen, shares)
    except Exception:  # a foreign module may raise anything if it needs other arguments
        return False
    return alike(expected, packed(rows, chosen, shares), roundings=_ROUNDINGS[dtype])


def pack_linears(model: Any, least: int | None = None) -> None:
    """Pack every plain linear layer, and all experts, of `model` that oneDNN can multiply here, in place.

    Args:
        model: the model.
        least: the fewest numbers of a weight that is packed; None: those from which it pays.
    """
    text = set(text_part(model).modules()) if isinstance(model, PreTrainedModel) else frozenset()
    kinds = {type(module) for module in model.modules()}
    read = {kind: _layers_whose_weight_is_read(kind) for kind in kinds}
    kept = {getattr(module, name, None) for module in model.modules() for name in read[type(module)]}

    def pack(module: Any) -> PackedLinear | PackedExperts | None:
        # `type is`, not `isinstance`: subclasses may multiply otherwise.
        if type(module) is not nn.Linear:
            return PackedExperts.of(module, least)
        if module in kept:
            return None
        weight = module.weight
        pays = _LEAST_OF_TEXT if module in text and weight.dtype == torch.bfloat16 else _LEAST
        fits = weight.numel() >= (pays if least is None else least) and _is_packable(weight, module.in_features)
        return PackedLinear(module) if fits else None

    replace_modules(model, pack)
    for module in model.modules():
        for layer in module.layers if isinstance(module, PackedExperts) else (module,):
            if isinstance(layer, PackedLinear):
                layer.settle()


def _layers_whose_weight_is_read(kind: Any) -> frozenset[str]:
    """The names of the children of which `forward` of a class reads the `weight`'s numbers.

    Except for training, and as the left factor of a product.
    """
    try:
        source = inspect.getsource(inspect.unwrap(kind.forward))
    except (OSError, TypeError):  # made without a file
        return frozenset()
    waiting: list[ast.AST] = [ast.parse(textwrap.dedent(source))]
    found = set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "self.training" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Attribute) and node.attr == "dtype":
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult) and _owner_of_weight(node.left):
            waiting.append(node.right)
            continue
        name = _owner_of_weight(node)
        if name is not None:
            found.add(name)
        waiting += ast.iter_child_nodes(node)
    return frozenset(found)


def _owner_of_weight(node: ast.AST) -> str | None:
    """`name`, if the code is `something.name.weight`."""
    if isinstance(node, ast.Attribute) and node.attr == "weight" and isinstance(node.value, ast.Attribute):
        return node.value.attr
    return None


def _reordered(weight: Tensor) -> Tensor:
    """In the order that oneDNN chooses for one thread; for more, `SkinnyGemm` could not read that of small weights."""
    if not onednn_multiplies(weight.dtype):
        return blocked(weight)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)  # noqa: SLF001
    finally:
        torch.set_num_threads(threads)
    return packed


def _is_packable(weight: Tensor, inputs: int) -> bool:
    if weight.device.type != "cpu":
        return False
    return onednn_multiplies(weight.dtype) or (weight.dtype == torch.bfloat16 and takes_all_rows(weight.dtype, inputs))
