"""Models whose weights are split over several devices, by transformers' own plans.

A plan names, for each linear layer of a model class, whether its outputs or its inputs are split, and transformers
gives such layers the sums and gathers that they need. What a plan does not name is whole on each rank.
"""

from __future__ import annotations

import copy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from backends.native.checkpoints.heads import why_not_split
from backends.native.checkpoints.layout import gguf_of
from backends.native.engine.devices import accelerator
from backends.native.engine.errors import LoadError
from backends.native.engine.formats.tensors import model_class
from backends.native.engine.layers.quantized_linear import BITS
from backends.native.engine.loading.weights import auto_class_of, pick_device, read_config
from backends.native.engine.state.mixers import is_recurrent_model
from backends.native.protocol.engine_options import EngineOptions

_SINGLE = "leave out tensor_parallel"


def check_split(options: EngineOptions) -> None:
    """Refuse a model that cannot be split over `options.tensor_parallel` devices, before anything of it is loaded.

    Raises:
        LoadError: says why, and what to set.
    """
    ranks = options.tensor_parallel
    why = _why_options_exclude(options) or _why_devices_exclude(options) or _why_model_excludes(options)
    if why is not None:
        raise LoadError(f"tensor_parallel = {ranks} is not possible for '{options.model}': {why}.")


@torch.inference_mode()
def split_model(model: Any, ranks: int) -> None:
    """Keep one rank's share of a model that is whole on each of `ranks` ranks, in place. All must call it."""
    # Here: other uses of the engine need no distributed code.
    from transformers.distributed import DistributedConfig
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    _untie(model)
    plan, _, _ = model._resolve_parallel_plans(DistributedConfig(tp_size=ranks))  # noqa: SLF001 - what `from_pretrained` does
    mesh = init_device_mesh(model.device.type, (ranks,), mesh_dim_names=("tp",))
    apply_tensor_parallelism(model, mesh, plan)


def _untie(model: Any) -> None:
    """Give each module parameters of its own, over the same memory: a plan splits each by its own name."""
    seen: set[int] = set()
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                setattr(module, name, nn.Parameter(parameter.detach(), requires_grad=False))
            seen.add(id(parameter))


def _why_options_exclude(options: EngineOptions) -> str | None:
    if options.dtype in BITS:
        return f"linear layers in {options.dtype} cannot be split; set another dtype, or {_SINGLE}"
    if options.lora_adapters or options.lora_folder:
        return f"LoRA adapters cannot be split; take them out, or {_SINGLE}"
    if options.execution_path == "per_sequence":
        return f"only the packed execution path can be split; leave out execution_path, or {_SINGLE}"
    return None


def _why_devices_exclude(options: EngineOptions) -> str | None:
    device = pick_device(options.device)
    if device.type == "cpu":
        # transformers loads to the accelerator if it finds one.
        hidden = "hide the accelerators from the process (CUDA_VISIBLE_DEVICES=), or leave out device"
        return None if accelerator() is None else f"this machine has accelerators; {hidden}"
    last = (device.index or 0) + options.tensor_parallel
    devices = torch.accelerator.device_count()
    return None if last <= devices else f"it needs the devices up to {last - 1}, and torch finds {devices}; set fewer"


def _why_model_excludes(options: EngineOptions) -> str | None:
    path = Path(options.model)
    config = read_config(path)
    text = config.get_text_config(decoder=True)
    if (why := why_not_split(config.to_dict(), options.tensor_parallel)) is not None:
        return f"{why}; set a number that divides it"
    if find_spec("transformers.distributed.tensor_parallel") is None:
        return "this release of transformers cannot split models; install 5.23 or later"
    if find_spec("accelerate") is None:
        return "transformers needs accelerate for it: pip install 'interlingua[parallel]'"
    if not getattr(text, "base_model_tp_plan", None):
        return f"transformers has no plan for splitting a {text.model_type}; {_SINGLE}"
    if getattr(config, "quantization_config", None) or gguf_of(path) is not None:
        return f"quantized weights cannot be split; {_SINGLE}"
    if text is not config and not options.text_only:
        return "images cannot be processed on several devices; set text_only = true to serve its text"
    # Without memory for weights.
    with torch.device("meta"):
        skeleton = model_class(auto_class_of(path, config), config)(copy.deepcopy(config))
    if is_recurrent_model(skeleton):
        return f"the recurrent state of a {text.model_type} cannot be split; {_SINGLE}"
    return None
