"""Recurrent layers of transformers' models in a packed step.

A model's own module computes; only what it is called with changes. In a step, a module that keeps state is called once
for each group of sequences, with the group's rows as a batch and the group's states in place of transformers' cache.
Such modules are found by what their code calls, not by their class. Outside of a step they are what they were.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn

from backends.native.engine.attention.progress import report_progress
from backends.native.engine.lora.layers import adapting
from backends.native.engine.state import causal_conv, delta_rule, griffin, selective_scan, selective_state
from backends.native.engine.state.functions import function_of, with_functions
from backends.native.engine.state.mamba_update import MambaUpdate
from backends.native.engine.state.step import Group, StateView, current_groups

# What modules call on transformers' cache for recurrent state, and the names that they give the cache.
_CACHE_CALLS = {"update_conv_state", "update_recurrent_state", "get_linear_cache"}
_CACHE_NAMES = ("cache_params", "past_key_values")
_MARK = "interlingua_separated"


def is_recurrent_model(model: Any) -> bool:
    """Whether any module of `model` keeps state."""
    return any(is_recurrent(module) for module in model.modules())


def separate_sequences(model: Any) -> bool:
    """Have every module of `model` that keeps state run sequence by sequence within a step, in place.

    Returns:
        whether there are such modules.
    """
    mixers = [module for module in model.modules() if is_recurrent(module)]
    for index, module in enumerate(mixers):
        if not hasattr(module, "layer_idx"):
            module.layer_idx = index
        if not hasattr(module, _MARK):
            setattr(module, _MARK, True)
            module.forward = _Separated(module).forward
    return bool(mixers)


def is_recurrent(module: nn.Module) -> bool:
    """Whether a module reads or writes the recurrent state of a cache."""
    return type(module).__name__ == griffin.BLOCK or not _CACHE_CALLS.isdisjoint(_names_in(module))


def _names_in(module: nn.Module) -> tuple[str, ...]:
    """What the code of a module's forward refers to."""
    names: tuple[str, ...] = inspect.unwrap(type(module).forward).__code__.co_names
    return names


def _own_forward(module: Any) -> Callable[..., Any]:
    """The forward of a module, with our convolution and recurrence in decode."""
    forward: Callable[..., Any] = module.forward
    ours: dict[str, Callable[..., Any]] = {causal_conv.NAME: causal_conv.causal_conv_update}
    ours |= dict.fromkeys(selective_state.NAMES, selective_state.selective_state_update)
    ours |= dict.fromkeys(delta_rule.NAMES, delta_rule.delta_rule_update)
    used = ours.keys() & set(_names_in(module))
    found = {name: partial(ours[name], function_of(forward, name)) for name in used}
    return with_functions(forward, found) if found else forward


class _Separated:
    """A module that keeps state, called once for each group of a step's sequences.

    What does not change between steps is found once.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        parameters = inspect.signature(module.forward).parameters
        self._names = tuple(parameters)
        # Masks hide padding, which a group does not have.
        self._masks = {name: None for name in parameters if "mask" in name}
        self._griffin = type(module).__name__ == griffin.BLOCK
        self._cache = "" if self._griffin else next((name for name in _CACHE_NAMES if name in parameters), "")
        self._scans = selective_scan.NAME in _names_in(module)
        self._own = _own_forward(module)
        selective_state.keep_decay(module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        groups = current_groups()
        if groups is None:
            return self._own(*args, **kwargs)
        report_progress()
        arguments = dict(zip(self._names, args, strict=False)) | kwargs
        tokens = sum(len(group.works) * group.works[0].count for group in groups)
        if len(groups) == 1 and isinstance(groups[0].rows, slice):
            return self._run_whole(groups[0], arguments, tokens)
        outputs = []
        for group in groups:
            part = {name: _select(value, group, tokens) for name, value in arguments.items() if "mask" not in name}
            with adapting(group.works):
                outputs.append(self._call(group.states, part))
            group.states.write_back()
        return _join(outputs, groups, tokens)

    def _run_whole(self, group: Group, arguments: dict[str, Any], tokens: int) -> Any:
        """Call the module for the one group of a step, whose rows are the pack's, and so are its LoRA adapters."""
        packed, apart = (1, tokens), (len(group.works), group.works[0].count)
        part = {name: _reshape(value, packed, apart) for name, value in arguments.items() if "mask" not in name}
        output = self._call(group.states, part)
        group.states.write_back()
        return _reshape(output, apart, packed)

    def _call(self, states: StateView, arguments: dict[str, Any]) -> Any:
        """Call the module for one group of sequences."""
        if self._griffin:
            return griffin.forward(self._module, states, arguments["input_states"], arguments["position_ids"])
        updated = self._update(states, arguments[self._names[0]]) if self._scans else None
        if updated is not None:
            return updated
        own = selective_scan.starting_from(states, self._module, self._own) if self._scans else self._own
        return own(**arguments | self._masks | {self._cache: states})

    def _update(self, states: StateView, hidden: Tensor) -> Tensor | None:
        """The output of a compiled mixer for one more token of each sequence; None if it does not take them."""
        layer = self._module.layer_idx
        latest, state = states.get_conv_state(layer), states.get_recurrent_state(layer)
        if latest is None or state is None or hidden.shape[1] != 1:
            return None
        if self._compiled is None or not self._compiled.takes(hidden, latest, state):
            return None
        return self._compiled.update(hidden, latest, state)

    @cached_property
    def _compiled(self) -> MambaUpdate | None:
        """The compiled mixer, made at its first use: linear layers are packed after this object was made."""
        own = partial(self._own, **self._masks)
        return MambaUpdate.of(self._module, lambda rows, states: own(rows, **{self._cache: states}))


def _reshape(value: Any, leading: tuple[int, int], wanted: tuple[int, int]) -> Any:
    """`value` with other leading dimensions, where they are `leading`: a tensor, or a tuple of values."""
    if isinstance(value, Tensor):
        return value.reshape(*wanted, *value.shape[2:]) if value.shape[:2] == leading else value
    if isinstance(value, tuple | list):
        return type(value)(_reshape(each, leading, wanted) for each in value)
    return value


def _select(value: Any, group: Group, tokens: int) -> Any:
    """A group's part of an argument: of every tensor with a row for each token of the pack."""
    if isinstance(value, Tensor):
        return group.select(value) if value.shape[:2] == (1, tokens) else value
    if isinstance(value, tuple | list):
        return type(value)(_select(each, group, tokens) for each in value)
    return value


def _join(outputs: list[Any], groups: list[Group], tokens: int) -> Any:
    """The groups' outputs as one of the pack's order; each is a tensor [sequences, tokens, ...] or a tuple of them."""
    first = outputs[0]
    if isinstance(first, tuple | list):
        return type(first)(_join(list(parts), groups, tokens) for parts in zip(*outputs, strict=True))
    # Modules also return what nobody reads: attention weights, the cache.
    if not isinstance(first, Tensor) or first.shape[:2] != (len(groups[0].works), groups[0].works[0].count):
        return first
    joined = first.new_empty(1, tokens, *first.shape[2:])
    for group, output in zip(groups, outputs, strict=True):
        joined[0, group.rows] = output.flatten(0, 1)
    return joined
