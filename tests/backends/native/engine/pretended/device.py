"""A pretended accelerator with right numbers, on a torch that was built for CPUs.

A tensor on it is a wrapper around a tensor on the CPU. Every operation is unwrapped, run on the CPU and wrapped again.
What a real device refuses is refused (`Refused`): tensors of two devices in one operation, a CPU tensor indexed by one
of the device, an address given to compiled code of the CPU. What makes the host wait is noted with the line of ours
that did it (`Trace`).

A copy to the host that is not waited for takes effect when something else waits, or an event behind it is waited for:
until then its result holds other numbers, so that code that reads too early gives wrong tokens. A pinned tensor that is
written while a copy from it may still be under way is refused at the next wait.

Not pretended: the size of the memory, the device's own rounding, several streams, and speed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from tests.backends.native.engine.pretended.copies import Copies, Event, Refused
from tests.backends.native.engine.pretended.environment import load_guard, torch_that_has
from tests.backends.native.engine.pretended.recording import Recording, own_memory
from tests.backends.native.engine.pretended.trace import Trace, line_of_ours

aten = torch.ops.aten

_COPIES = {aten._to_copy.default, aten.copy_.default, aten._copy_from.default}
_WAITS = {
    aten.nonzero.default,
    aten.masked_select.default,
    aten._local_scalar_dense.default,  # item(), int(), bool()
    aten.equal.default,
    aten.is_nonzero.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
}
_INDEXING = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
# Inference mode hands composite operations over whole. These are one kernel on a device; others are decomposed.
_WHOLE = {aten.scaled_dot_product_attention.default, aten.linear.default, aten.matmul.default}
_ALLOCATIONS = {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
"""They take memory and start no kernel."""
_PINNING = {aten.pin_memory.default, aten._pin_memory.default}


class DeviceTensor(torch.Tensor):
    """A tensor on the pretended device; `raw` is the tensor on the CPU with its numbers."""

    __slots__ = ["raw"]
    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor, device: torch.device) -> Self:
        # Outside of inference mode: views of inference wrappers cannot be made.
        with torch.inference_mode(False):
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                raw.size(),
                strides=raw.stride(),
                storage_offset=raw.storage_offset(),
                dtype=raw.dtype,
                layout=raw.layout,
                device=device,
                requires_grad=False,
            )
        made.raw = raw
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.raw!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _active().run(func, args, kwargs or {})

    def tolist(self) -> Any:
        """Wait, and give the numbers."""
        _active().wait("tolist")
        _active().copied("to the host")
        return self.raw.tolist()

    def numpy(self, **_: Any) -> Any:  # type: ignore[override]
        """Refused, as by torch."""
        raise TypeError(f"can't convert {self.device} device type tensor to numpy")

    def data_ptr(self) -> int:
        """Refused: whoever asks is code of the CPU."""
        raise Refused("the address of a device's tensor was taken by code of the host")

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        """Another wrapper of the same numbers."""
        return DeviceTensor(self.raw, self.device)

    @data.setter
    def data(self, other: DeviceTensor) -> None:
        self.raw = other.raw


class PretendedDevice(TorchDispatchMode):
    """While entered, there is one accelerator of type `kind`.

    Args:
        kind: `cuda` or `xpu`.

    Attributes:
        trace: what was noted.
    """

    _entered: ClassVar[list[PretendedDevice]] = []

    def __init__(self, kind: str = "cuda") -> None:
        super().__init__()
        self.device = torch.device(kind, 0)
        self.trace = Trace()
        self._exits = ExitStack()
        self._pinned: dict[int, Tensor] = {}
        self._copies = Copies()
        self._recording: Recording | None = None
        self._graph_memory: list[Tensor] = []

    def __enter__(self) -> Self:
        load_guard()
        self._exits.enter_context(torch_that_has(self.device.type, self.wait, self.record))
        PretendedDevice._entered.append(self)
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        PretendedDevice._entered.pop()
        self._exits.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def wait(self, why: str) -> None:
        """Note that the host waits; copies that were under way are done then."""
        self.trace.waits[why, line_of_ours()] += 1
        self._copies.arrive(self._copies.now())

    def record(self) -> Event:
        """An event behind what was started so far."""
        return Event(self._copies, lambda: self.trace.waits.update([("an event", line_of_ours())]))

    def copied(self, direction: str) -> None:
        """Note a copy."""
        self.trace.copies[direction, line_of_ours()] += 1

    def launch(self, name: str, function: Callable[..., None], *arguments: Any) -> None:
        """Run `function` on the CPU's tensors of device tensors, as one kernel; it writes into them.

        Raises:
            Refused: one of the tensors is on the host.
        """
        if any(isinstance(each, Tensor) and not isinstance(each, DeviceTensor) for each in arguments):
            raise Refused(f"the kernel {name} was given a tensor on the host")
        self._started(name, arguments)
        raw = [_unwrapped(each) for each in arguments]
        if self._recording is not None:
            self._recording.add(lambda: function(*raw))
        with _disable_current_modes():
            function(*raw)

    def capture(self, step: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        """Record what `step` starts; return what starts the same again, on the same addresses, and its result.

        Raises:
            Refused: the step waits or copies.
        """
        waits, copies = self.trace.waits.total(), self.trace.copies.total()
        recording = self._recording = Recording(self._graph_memory)
        try:
            found = step()
        finally:
            self._recording = None
        if (waits, copies) != (self.trace.waits.total(), self.trace.copies.total()):
            raise Refused(f"a step that waits or copies was captured: {self.trace.report()}")

        def replay() -> None:
            self.trace.kernels["replay", line_of_ours()] += 1
            with _disable_current_modes():
                recording.replay()

        return replay, found

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operation of torch."""
        if func is aten._has_compatible_shallow_copy_type.default:
            return False
        if func in _PINNING or func is aten.is_pinned.default:
            return self._pin(func, args[0])
        if func not in _WHOLE and func._can_decompose():
            with _Decomposing(self):
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if func in _COPIES:
            return self._copy(func, args, kwargs)
        mine = any(isinstance(each, DeviceTensor) for each in tensors)
        if mine:
            self._check(func, args, kwargs, tensors)
        target = kwargs.get("device")
        on_device = mine if target is None else torch.device(target).type == self.device.type
        if func is aten._local_scalar_dense.default:
            on_device = False
        if on_device and not _is_view(func):
            self._started(str(func), (args, kwargs), kernels=int(func not in _ALLOCATIONS))
        found = self._on_cpu(func, args, kwargs)
        if kwargs.get("pin_memory"):
            self._pinned[found.untyped_storage().data_ptr()] = found
        return self._wrapped(found, tensors) if on_device else found

    def _started(self, name: str, given: Any, kernels: int = 1) -> None:
        leaves = tree_leaves(given)
        with _disable_current_modes():
            tensors = [_unwrapped(each) for each in leaves if isinstance(each, Tensor)]
            self.trace.started(name, tensors, [each for each in leaves if not isinstance(each, Tensor)], kernels)

    def _pin(self, func: Any, tensor: Tensor) -> Any:
        storage = tensor.untyped_storage().data_ptr() if not isinstance(tensor, DeviceTensor) else 0
        if func is aten.is_pinned.default:
            return storage in self._pinned
        with _disable_current_modes():
            made = tensor.clone()
        # Kept for as long as the device, so that no other tensor gets the address.
        self._pinned[made.untyped_storage().data_ptr()] = made
        return made

    def _check(self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
        """Refuse, or note a wait, by the tensors of an operation on the device."""
        if func in _INDEXING:
            self._check_index(func, args)
        elif func is not aten.set_.source_Tensor:
            # Tensors without dimensions may be on the host, as on CUDA.
            strangers = [each for each in tensors if not isinstance(each, DeviceTensor) and each.dim()]
            if strangers:
                raise Refused(f"{func}: tensors on {self.device} and cpu, {[list(each.shape) for each in strangers]}")
        if func in _WAITS:
            self.wait(str(func))
            self.copied("to the host")
        if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            self.wait("repeat_interleave without output_size")

    def _check_index(self, func: Any, args: Any) -> None:
        if not isinstance(args[0], DeviceTensor):
            raise Refused(f"{func}: a tensor on cpu is indexed by one on {self.device}")
        for index in args[1]:
            if index is None:
                continue
            if not isinstance(index, DeviceTensor):
                self.wait("an index on the host")
                self.copied("to the device")
            if index.dtype in (torch.bool, torch.uint8):
                self.wait("an index by a mask")
        if len(args) > 2 and not isinstance(args[2], DeviceTensor) and args[2].dim():
            raise Refused(f"{func}: values on the host")

    def _copy(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        into = func is aten.copy_.default
        source = args[1] if into else args[0]
        target = kwargs.get("device")
        mine = isinstance(source, DeviceTensor)
        if into:
            to_mine = isinstance(args[0], DeviceTensor)
        else:
            to_mine = mine if target is None else torch.device(target).type == self.device.type
        late = bool(args[2] if into and len(args) > 2 else kwargs.get("non_blocking"))
        comes, goes = to_mine and not mine and source.dim() > 0, mine and not to_mine
        if comes:
            self._copy_in(source, late=late)
        elif goes:
            self.copied("to the host")
            if not late:
                self.wait("a copy to the host")
            elif into:
                self._copies.overwrite(args[0])
        elif to_mine:
            self._started(str(func), (args, kwargs))
        with self._copies.in_order(source) if comes else nullcontext():
            made = self._on_cpu(func, args, kwargs)
            if not into and made is (source.raw if mine else source):
                with _disable_current_modes():
                    made = made.clone()  # between devices nothing is shared
        if goes and late:
            self._copies.to_host(made)
        return self._wrapped(made, [args[0]] if into else []) if to_mine else made

    def _copy_in(self, source: Tensor, *, late: bool) -> None:
        self.copied("to the device")
        if late and source.untyped_storage().data_ptr() in self._pinned:
            with self._copies.in_order(source):
                self._copies.to_device(source)
        else:
            self.wait("a copy from pageable memory")

    def _on_cpu(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        def unwrapped(each: Any) -> Any:
            if isinstance(each, torch.device) and each.type == self.device.type:
                return torch.device("cpu")
            return _unwrapped(each)

        given, named = tree_map(unwrapped, args), tree_map(unwrapped, kwargs)
        if named.get("device") is not None and torch.device(named["device"]).type == self.device.type:
            named["device"] = torch.device("cpu")
        if named.get("pin_memory"):
            named["pin_memory"] = False
        if func is aten.histc.default:
            func = _histogram
        with _disable_current_modes():
            made = func(*given, **named)
            fresh = own_memory(made, [each for each in tree_leaves((given, named)) if isinstance(each, Tensor)])
            self.trace.made(fresh)
        if self._recording is not None:
            self._recording.add_operation(func, given, named, made, fresh)
        return made

    def _wrapped(self, found: Any, tensors: list[Tensor]) -> Any:
        # An operation in place returns the very wrapper that it was given.
        known = {id(each.raw): each for each in tensors if isinstance(each, DeviceTensor)}

        def wrapped(each: Any) -> Any:
            if not isinstance(each, Tensor) or isinstance(each, DeviceTensor):
                return each
            return known[id(each)] if id(each) in known else DeviceTensor(each, self.device)

        return tree_map(wrapped, found)


class _Decomposing(TorchDispatchMode):
    """Runs the parts of a composite operation."""

    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self._of = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._of.run(func, args, kwargs or {})


def address(tensor: Tensor) -> int:
    """Where the numbers of a device's tensor lie."""
    assert isinstance(tensor, DeviceTensor)
    return tensor.raw.data_ptr()


def _histogram(numbers: Tensor, *more: Any) -> Tensor:
    """Transformers counts the tokens of experts so off the CPU, which has this for floats only."""
    return torch.histc(numbers.float(), *more).to(numbers.dtype)


def _unwrapped(each: Any) -> Any:
    return each.raw if isinstance(each, DeviceTensor) else each


def _active() -> PretendedDevice:
    return PretendedDevice._entered[-1]


def _is_view(func: Any) -> bool:
    """Whether an operation only looks at its input otherwise, for which no kernel is started."""
    return any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
