"""Linear layers on CPUs whose weights are kept in the blocked order that oneDNN multiplies in.

A plain `nn.Linear` has its weight reordered at every call, or is multiplied by a slower routine. For the few rows of a
decode step the packed layer is up to three times as fast, and with `SkinnyGemm`, where it can be used, half as fast
again. The product is the same. A packed weight can only be multiplied with, as Mamba does for its time steps; layers
whose `weight` the module around them reads otherwise stay as they are, and the self-check finds what was overlooked.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from backends.native.engine.attention.interface import text_part
from backends.native.engine.kernels.gemv import BLOCK, SkinnyGemm
from backends.native.engine.layers.fusion import replace_modules

# oneDNN chooses its order for so many rows; other numbers of rows work with it, too.
_ROWS = 32
# A weight of fewer numbers than 2^16 is multiplied as fast unpacked (measured with one row). It is packed nevertheless:
# packed, a row has the same sums whatever other rows it is multiplied with.
_LEAST = 2**12
# In bfloat16 smaller ones take half as long packed, from two rows on; in float32 longer. Towers for images multiply too
# many rows for that, and their outputs would take more memory, padded.
_LEAST_OF_TEXT = 2**9
# Fewer rows than these are padded, since they take oneDNN longer: one row a seventh longer in bfloat16, a quarter
# longer in float32 (measured).
_FEWEST_ROWS = 4


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


def pack_linears(model: Any, least: int | None = None) -> None:
    """Pack every plain linear layer of `model` that oneDNN can multiply here, in place.

    Args:
        model: the model.
        least: the fewest numbers of a weight that is packed; None: those from which it pays.
    """
    text = set(text_part(model).modules()) if isinstance(model, PreTrainedModel) else frozenset()
    kinds = {type(module) for module in model.modules()}
    read = {kind: _layers_whose_weight_is_read(kind) for kind in kinds}
    kept = {getattr(module, name, None) for module in model.modules() for name in read[type(module)]}

    def pack(module: Any) -> PackedLinear | None:
        # `type is`, not `isinstance`: subclasses may multiply otherwise.
        if type(module) is not nn.Linear or module in kept:
            return None
        pays = _LEAST_OF_TEXT if module in text and module.weight.dtype == torch.bfloat16 else _LEAST
        fits = module.weight.numel() >= (pays if least is None else least) and _is_packable(module.weight)
        return PackedLinear(module) if fits else None

    replace_modules(model, pack)


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
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)  # noqa: SLF001
    finally:
        torch.set_num_threads(threads)
    return packed


def _is_packable(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001
    return weight.dtype == torch.float32
