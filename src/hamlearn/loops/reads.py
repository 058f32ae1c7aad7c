"""What a recorded step has read besides its inputs, and the values it had: a recording holds while they last.

A recording keeps whatever Python computed while it was made: a module's gain, a weight in a loss, an entry of a
dict. So everything that the recorded code could read is noted down by value: all that network and loss refer to,
and the globals of every function of the user's that was called. What cannot be compared is refused by name.
"""

from __future__ import annotations

import dis
import gc
import itertools
import sys
import types
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from hamlearn._base.torch_private import tensor_hooks, tree_leaves
from hamlearn.loops import outside
from hamlearn.loops.alone import alone
from hamlearn.loops.compared import MISSING, generators, in_library, restore_generators, same_items, same_numbers
from hamlearn.loops.followed import Followed
from hamlearn.loops.values import UnsupportedError

_INTO_C = {"torch.autograd.function", "torch._functorch.apis", "torch._functorch.eager_transforms"}
"""Where PyTorch hands tensors to functions of its own that nobody can be asked about."""
_HANDED_ON = (
    "it gives a weight that it holds by itself to an autograd.Function or a transform of torch.func, which a "
    "recording does not see: reach the weight through the network"
)
_VIEWS = (Iterator, KeysView, ValuesView, ItemsView, bytearray, memoryview)
_MADE_ANEW = (Tensor, tuple, list, dict, set, torch.autograd.function.FunctionCtx, *_VIEWS)
"""Kinds of arguments that are not followed."""


class Reads(Followed):
    """Values that a recording may depend on, as they were, and whether they still are.

    Attributes:
        imports: Modules that functions import when they are called, what they read of them, and in which function.
        buffers: Which of those that are given are buffers.
        made: Objects that the step makes itself, and may change as it likes.
        reads_grad: Whether the step reads something called `grad`, which may be that of a tensor.

    Example:
        >>> gain = {"value": 2.0}
        >>> reads = Reads()
        >>> reads.follow("gain", gain)
        >>> reads.changed()
        >>> gain["value"] = 3.0
        >>> reads.changed()
        "gain['value']"
    """

    def __init__(self) -> None:
        super().__init__()
        self.imports: list[tuple[str, set[str], str]] = []
        self.buffers: set[int] = set()
        self.made: dict[int, Any] = {}
        self.reads_grad = False

    def network(self, network: nn.Module) -> None:
        """Note down a network, whose parameters and buffers are inputs, not values."""
        self.inputs(network)
        for name, tensor in (*network.named_parameters(), *network.named_buffers()):
            if tensor_hooks(tensor):
                raise UnsupportedError(f"{name!r} has a hook, which a recorded step would not call")
            self.names.append((tensor, "_backward_hooks", tensor_hooks(tensor), f"the hooks of {name!r}"))
            for field, value in self._fields(repr(name), tensor):
                self.follow(field, value)
        self.follow("the network", network)

    def inputs(self, network: nn.Module) -> None:
        """Take a network's parameters and buffers for inputs, whatever refers to them."""
        for tensor in (*network.parameters(), *network.buffers()):
            self.seen[id(tensor)] = self.given[id(tensor)] = tensor
        self.buffers |= {id(buffer) for buffer in network.buffers()}

    @contextmanager
    def watching(self, *, calls: bool = False) -> Iterator[None]:
        """Within, the globals that the user's functions read are noted down as they are called.

        Args:
            calls: Whether the functions of Python that they call are looked at too, as long as nothing is
                recorded: a recording makes thousands of such calls for each of theirs.

        Raises:
            UnsupportedError: If something that was noted down has changed by the end (it is put back), if random
                numbers of Python or NumPy were drawn, or if the code asked the world outside for anything.
        """
        with alone():
            yield from self._watching(calls)

    def _watching(self, calls: bool) -> Iterator[None]:
        before, outer, recording = generators(), sys.gettrace(), not calls
        # A step may write to weights, which are the learner's own while it is tried.
        were = [(own, own.detach().clone()) for own in self.given.values() if own.layout is torch.strided]
        # A profiler cannot be put back in its place from here.
        calls = calls and sys.getprofile() is None
        failed: list[UnsupportedError] = []
        counted: dict[int, types.CodeType] = {}

        def called(frame: types.FrameType, event: str, arg: Any) -> None:
            module = frame.f_globals.get("__name__")
            if recording and module in _INTO_C and not failed and self._hands_on(frame):
                failed.append(UnsupportedError(_HANDED_ON))
            # What was made by `exec` need not have a module: it is the user's. Named tuples are made by Python.
            if module is not None and module.startswith("namedtuple_") and frame.f_code.co_filename == "<string>":
                return
            if (module is not None and in_library(module)) or failed or not outside.of_step(frame, counted):
                return
            counted[id(frame.f_code)] = frame.f_code
            try:
                self._frame(frame)
            except UnsupportedError as error:
                failed.append(error)

        def asked(frame: types.FrameType, event: str, arg: Any) -> None:
            if not failed:
                try:
                    outside.refuse_call(frame, event, arg)
                except UnsupportedError as error:
                    failed.append(error)

        # What the garbage collector would call meanwhile is not part of the step.
        collects = gc.isenabled()
        gc.disable()
        sys.settrace(called)
        if calls:
            sys.setprofile(asked)
        try:
            yield
        finally:
            if calls:
                sys.setprofile(None)
            sys.settrace(outer)
            if collects:
                gc.enable()
            changed = self.changed()
            if changed is not None:
                self.put_back()
                for _, cached, kept in self.caches:
                    if not kept:
                        cached.cache_clear()
            with torch.no_grad():
                written = [own.copy_(old) for own, old in were if not same_numbers(own, old)]
            drawn = not same_items(before, generators())
            if drawn:
                restore_generators(before)
        if failed:
            raise failed[0]
        if changed is not None:
            raise UnsupportedError(f"calling it changes {changed}")
        if any(id(own) in self.buffers for own in written):
            raise UnsupportedError("it writes to a buffer of the network that it holds by itself")
        # By now caches are filled, and modules imported, but for those behind a branch that was not taken.
        for label, cached, _ in self.caches:
            self._results(label, cached)
        for name, attributes, where in self.imports:
            self._imported(name, attributes, where)
        if self.reads_grad:
            self._gradients()
        if drawn:
            raise UnsupportedError("it draws random numbers of Python or NumPy")

    def _hands_on(self, frame: types.FrameType) -> bool:
        """Whether a function is given a weight of the network, and not the one that it is lent for the step."""
        given = tree_leaves([value for name, value in frame.f_locals.items() if name in ("args", "kwargs")])
        return any(id(value) in self.given for value in given)

    def _frame(self, frame: types.FrameType) -> None:
        code, scope = frame.f_code, frame.f_globals
        if id(code) not in self.seen:
            self.seen[id(code)] = code
            self._globals(code, scope)
        if code.co_name == "__init__" and code.co_varnames:
            begun = frame.f_locals.get(code.co_varnames[0])
            self.made[id(begun)] = begun
        for name, value in list(frame.f_locals.items()):
            # Containers and iterators among the arguments are made anew for each step, or are reached from
            # elsewhere; so is what a comprehension runs over, which Python calls ".0".
            if not isinstance(value, _MADE_ANEW) and id(value) not in self.made:
                self.follow(f"{name!r} in {code.co_name}()", value)

    def _globals(self, code: types.CodeType, scope: dict[str, Any]) -> None:
        instructions = list(dis.get_instructions(code))
        attributes = {i.argval for i in instructions if i.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")}
        # `getattr` and `vars` take the name of an attribute as a text.
        texts = {text for text in code.co_consts if isinstance(text, str)}
        outside.refuse_code(code, attributes)
        self.reads_grad |= "grad" in attributes
        for name in {i.argval for i in instructions if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}:
            value, label = scope.get(name, MISSING), f"the global {name!r} of {scope.get('__name__')}"
            # A global may come later, and hide a name of Python's own.
            self.name(scope, name, value, label)
            if value is MISSING:
                outside.refuse_builtin(name, f"{code.co_name}()")
                continue
            outside.refuse_value(value, attributes, f"{code.co_name}()")
            if isinstance(value, types.ModuleType):
                self._module(value, attributes | texts, name)
            else:
                self.follow(label, value)
        imported = outside.imported(instructions, scope)
        self.imports += [(name, attributes, f"{code.co_name}()") for name in imported]

    def _gradients(self) -> None:
        """Note down `grad` of every tensor; that of a weight, which is an input, only as long as there is none."""
        valued = {id(tensor) for tensor, _, _, _ in self.tensors}
        for tensor in list(self.seen.values()):
            if type(tensor) not in (Tensor, nn.Parameter) or not tensor.is_leaf:
                continue
            if id(tensor) not in valued and tensor.grad is not None:
                raise UnsupportedError("it may read the grad of a weight, which a recorded step does not see")
            self.name(tensor, "grad", tensor.grad, "the grad of a tensor")
            self.follow("the grad of a tensor", tensor.grad)

    def _imported(self, name: str, attributes: set[str], where: str) -> None:
        """What a function imports when it is called, which is what a module holds then."""
        for path in itertools.accumulate(name.split("."), "{}.{}".format):
            module = sys.modules.get(path, MISSING)
            if not in_library(path):
                self.name(sys.modules, path, module, f"the module {path!r}")
            if isinstance(module, types.ModuleType):
                outside.refuse_value(module, attributes, where)
                self._module(module, attributes, path)

    def _module(self, module: types.ModuleType, names: set[str], label: str) -> None:
        if in_library(module.__name__) or id(module) in self.seen:
            return
        for name in names:
            value = vars(module).get(name, MISSING)
            if value is MISSING:
                continue
            self.name(vars(module), name, value, f"{label}.{name}")
            if isinstance(value, types.ModuleType):
                # Packages and their modules refer to each other.
                self.seen[id(module)] = module
                self._module(value, names, f"{label}.{name}")
                del self.seen[id(module)]
            else:
                self.follow(f"{label}.{name}", value)
