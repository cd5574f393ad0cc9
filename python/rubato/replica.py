"""Replica: a State whose tensors lie in memory given from outside, and whose other values can be read and set.

What a state is follows from three places: the tensors of the model and of `extra`, the tensors of the optimizer, and
`coded`, the plain values of all of them. A state installed from these goes on with the same bits as the one that they
were read from.
"""

import copy
import inspect
import itertools
import typing

import torch

from . import tensors as memory
from .errors import Refused
from .modules import Modules
from .plain import decode, encode, is_plain


class Entry(typing.NamedTuple):
    name: str
    group: str  # "trained", "model" or "optimizer"
    dtype: torch.dtype
    shape: tuple


def uncompiled(name):
    """The name that a tensor has where torch.compile has wrapped nothing."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


class Replica:
    def __init__(self, state):
        self.state = state
        self.modules = Modules(state)
        self.modes = [(module, module.training) for module in state.model.modules()]
        self.parameters = {uncompiled(name): parameter for name, parameter in state.model.named_parameters()}
        self._names = {parameter: name for name, parameter in self.parameters.items()}
        for optimizer in getattr(state.optimizer, "optimizers", [state.optimizer]):  # those of Optimizers
            _require_single_step(optimizer)
        self._groups = self._group_names()
        for index, names in enumerate(self._groups):
            if None in names:
                raise Refused(
                    "UnknownParameter",
                    f"optimizer.param_groups[{index}] has a parameter that model.named_parameters() does not name: "
                    "make it part of the model that is given to State.",
                )
        self._built_optimizer = {
            parameter: copy.deepcopy(values) for parameter, values in state.optimizer.state.items() if values
        }
        self._trained = set()  # names
        self._homes = {}  # name -> tensor in the given memory
        self._optimizer_homes = {}
        self.make_plain()

    # ---- Reading ----

    def model_tensors(self):
        """(trained parameters, frozen ones and buffers and those of `extra`), by name, as they are now."""
        trained, rest = {}, {}
        for name, parameter in self.state.model.named_parameters():
            (trained if parameter.requires_grad else rest)[uncompiled(name)] = parameter
        rest.update((uncompiled(name), buffer) for name, buffer in self.state.model.named_buffers())
        for name, thing in self.state.extra.items():
            own, _ = read_extra(name, thing)
            taken = own.keys() & (trained.keys() | rest.keys())
            if taken:
                raise Refused("UnsupportedState", f"Two tensors of the state are named {min(taken)}: rename the extra.")
            rest.update(own)
        return trained, rest

    def layout(self):
        """All tensors in the engine's order. Complete after the first step, which makes the optimizer's."""
        trained, rest = self.model_tensors()
        optimizer = {name: values[key] for name, (values, key) in self._optimizer_places().items()}
        memory.check(trained | rest | {f"optimizer state {name}": tensor for name, tensor in optimizer.items()})
        groups = {"trained": trained, "model": rest, "optimizer": optimizer}
        return [
            Entry(name, group, tensor.dtype, tuple(tensor.shape))
            for group, named in groups.items()
            for name, tensor in named.items()
        ]

    def tensors(self):
        """All tensors in the order of layout()."""
        trained, rest = self.model_tensors()
        places = self._optimizer_places()
        return [*trained.values(), *rest.values(), *(values[key] for values, key in places.values())]

    def names_in_state_dict(self):
        """Of the model's tensors, all but buffers with persistent=False."""
        names = set(self.parameters)
        for prefix, module in self.state.model.named_modules():
            persistent = module._buffers.keys() - module._non_persistent_buffers_set
            names.update(uncompiled(f"{prefix}.{key}" if prefix else key) for key in persistent)
        return names

    def coded(self, step):
        """All that is no tensor, as JSON."""
        values = {}  # parameter -> what its optimizer state has beside tensors that have a key there
        for parameter, state in self.state.optimizer.state.items() if step else ():
            plain = {key: value for key, value in state.items() if not isinstance(value, torch.Tensor)}
            if plain:
                name = self._names[parameter]
                values[name] = encode(plain, _place_of(name), tensors={})
        return {**self.coded_outside(), "state": values}

    def coded_outside(self):
        """coded() without what the optimizer holds for its parameters."""
        optimizer, scheduler = self.state.optimizer, self.state.scheduler
        return {
            "extra": {name: read_extra(name, thing)[1] for name, thing in self.state.extra.items()},
            "groups": [
                encode(
                    {key: value for key, value in group.items() if key != "params"}, f"optimizer.param_groups.{index}"
                )
                for index, group in enumerate(optimizer.param_groups)
            ],
            "scheduler": scheduler and encode(scheduler.state_dict(), "scheduler"),
        }

    # ---- Writing ----

    def make_plain(self):
        """Puts plain values where the program has others that are like them: numpy.float32, say, with which it would
        compute other bits than a new worker, which gets the plain ones.
        """
        for index, group in enumerate(self.state.optimizer.param_groups):
            _make_plain(group, f"optimizer.param_groups.{index}")
        for parameter, values in self.state.optimizer.state.items():
            _make_plain(values, _place_of(self._names.get(parameter)))
        extra = [(f"extra.{name}", thing) for name, thing in self.state.extra.items()]
        for name, thing in [("scheduler", self.state.scheduler), *extra]:
            is_read = hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")
            if isinstance(thing, torch.nn.Module) or not is_read:
                continue  # it has tensors alone, or is refused
            current = thing.state_dict()
            if not is_plain(current):
                tensors = {}
                coded = encode(current, name, tensors)
                held = {key: tensor.clone() for key, tensor in tensors.items()}
                thing.load_state_dict(decode(coded, current, held))

    def make_contiguous(self):
        """As bind() does: bits may depend on strides."""
        trained, rest = self.model_tensors()
        for tensor in (*trained.values(), *rest.values()):
            tensor.data = tensor.data.contiguous()

    def bind(self, layout, homes):
        """Moves into this memory (one tensor for each entry), whose values hold from now on. Then comes load()."""
        self._homes = {entry.name: home for entry, home in zip(layout, homes) if entry.group != "optimizer"}
        self._optimizer_homes = {entry.name: home for entry, home in zip(layout, homes) if entry.group == "optimizer"}
        self._trained = {entry.name for entry in layout if entry.group == "trained"}
        for name, tensor in self._named().items():
            tensor.data = self._homes[name]

    def load(self, step, coded, optimizer_keys):
        """Takes over what is in the memory, the state before step `step`, and the plain values.

        optimizer_keys: of optimizer_keys() after any step. Before step 0 the optimizer has the state that build() left.
        """
        optimizer, scheduler = self.state.optimizer, self.state.scheduler
        if scheduler:
            scheduler.load_state_dict(decode(coded["scheduler"], scheduler.state_dict()))
        for group, saved in zip(optimizer.param_groups, coded["groups"]):
            parameters, options = group["params"], decode(saved, group)
            group.clear()
            group.update(options, params=parameters)
        optimizer.state.clear()
        if step == 0:
            for parameter, values in self._built_optimizer.items():
                optimizer.state[parameter] = copy.deepcopy(values)
        else:
            for name, (keys, paths) in optimizer_keys.items():
                inside = {f"{_place_of(name)}.{path}": self._optimizer_homes[f"{path}.{name}"] for path in paths}
                values = decode(coded["state"].get(name, {"dict": []}), {}, inside)
                held = {key: self._optimizer_homes[f"{key}.{name}"] for key in keys}
                optimizer.state[self.parameters[name]] = held | values
        for name, thing in self.state.extra.items():
            if isinstance(thing, torch.nn.Module):
                continue  # its tensors are the memory
            own, _ = read_extra(name, thing)
            values = {key: self._homes[key].clone() for key in own}
            thing.load_state_dict(decode(coded["extra"][name], thing.state_dict(), values))
        self.gather(step)

    def gather(self, step):
        """Moves tensors that the program made or replaced since into their place."""
        if self._group_names() != self._groups:
            raise Refused(
                "StateChanged",
                "The parameters of optimizer.param_groups are others than build() gave it: a new worker would not have "
                "them. Add all groups and parameters there, and set a group's lr to 0 until it is to be trained.",
            )
        for name, tensor in self._named().items():
            home = self._homes[name]
            if _is_elsewhere(name, tensor, home):
                home.copy_(tensor.detach())
                tensor.data = home
        if step == 0:
            return
        places = self._optimizer_places()
        _require_names(places, self._optimizer_homes, "the optimizer's state")
        for name, (values, key) in places.items():
            home = self._optimizer_homes[name]
            if values[key] is not home:
                if _is_elsewhere(name, values[key], home):
                    home.copy_(values[key])
                values[key] = home

    def clear_optimizer_memory(self):
        for home in self._optimizer_homes.values():
            home.zero_()

    def optimizer_keys(self):
        """Parameter name -> (keys of the tensors that the optimizer holds for it, paths of those in lists there)."""
        found = {}
        for parameter, values in self.state.optimizer.state.items():
            keys = [key for key, value in values.items() if isinstance(value, torch.Tensor)]
            paths = [path for key in values.keys() - set(keys) for _, _, path in _tensors_in(values, key, f"{key}")]
            found[self._names[parameter]] = keys, paths
        return found

    def restore_modes(self):
        """Training or evaluation mode of each module as build() left it, whatever the loop's body did."""
        for module, training in self.modes:
            module.training = training

    def _group_names(self):
        """Of each group, the names of its parameters; None: it is not the model's."""
        return [
            [self._names.get(parameter) for parameter in group["params"]]
            for group in self.state.optimizer.param_groups
        ]

    def _named(self):
        trained, rest = self.model_tensors()
        _require_names(trained | rest, self._homes, "the model")
        sides = sorted(trained.keys() ^ self._trained)
        if sides:
            raise Refused(
                "StateChanged",
                f"requires_grad of {', '.join(sides[:3])} changed after build(), and the workers hold memory for what "
                "was trained then: train it from the start, in a group with lr=0 until its time comes.",
            )
        for name, parameter in trained.items():
            if parameter is not self.parameters[name]:
                raise Refused(
                    "StateChanged",
                    f"{name} was replaced by another Parameter, which the optimizer does not have: copy values into "
                    "the one that build() made (parameter.data.copy_(), load_state_dict() without assign=True).",
                )
        return trained | rest

    def _optimizer_places(self):
        """Name of a tensor -> (dictionary or list, key) where the optimizer holds it."""
        places = {}
        for parameter, values in self.state.optimizer.state.items():
            if parameter not in self._names:
                raise Refused(
                    "UnsupportedState",
                    f"optimizer.state has the key {parameter!r:.80}, which is no parameter of the model: keep what is "
                    "not of one parameter in optimizer.param_groups.",
                )
            # As load() puts them: those with a key of their own are the first.
            for key in sorted(values, key=lambda key: not isinstance(values[key], torch.Tensor)):
                for holder, inner, path in _tensors_in(values, key, f"{key}"):
                    name = f"{path}.{self._names[parameter]}"
                    if name in places:
                        raise Refused("UnsupportedState", f"Two tensors of the optimizer are named {name}: rename one.")
                    places[name] = holder, inner
        return places


def _place_of(parameter):
    return f"optimizer.state.{parameter}"


def _tensors_in(holder, key, path):
    """(dictionary or list, key, path) of the tensor that is holder[key], or of those in the lists and dictionaries
    there.
    """
    value = holder[key]
    if isinstance(value, torch.Tensor):
        yield holder, key, path
    elif isinstance(value, (dict, list)):
        for inner in value if isinstance(value, dict) else range(len(value)):
            yield from _tensors_in(value, inner, f"{path}.{inner}")
    elif isinstance(value, tuple):
        tensors = {}
        encode(value, path, tensors)
        if tensors:
            raise Refused("UnsupportedState", f"The optimizer keeps {path} in a tuple: keep its tensors in a list.")


def _make_plain(values, where):
    for key, value in values.items():
        if key != "params" and not is_plain(value):
            tensors = {}
            values[key] = decode(encode(value, f"{where}.{key}", tensors), value, tensors)


def _require_single_step(optimizer):
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    needs_closure = closure is not None and closure.default is inspect.Parameter.empty
    if needs_closure or isinstance(optimizer, torch.optim.SparseAdam):
        why = "computes the loss several times in a step" if needs_closure else "needs sparse gradients"
        raise Refused(
            "UnsupportedOptimizer",
            f"{type(optimizer).__name__} {why}, and a step has one gradient, the dense sum over all workers: use "
            "another optimizer, AdamW or SGD, say.",
        )


def read_extra(name, thing):
    """(its tensors by full name, the rest as JSON)."""
    prefix = f"extra.{name}"
    if isinstance(thing, torch.nn.Module):
        named = itertools.chain(thing.named_parameters(), thing.named_buffers())
        return {f"{prefix}.{key}": tensor for key, tensor in named}, None
    if isinstance(thing, torch.amp.GradScaler):
        raise Refused(
            "GradScaler",
            f"State(extra={{{name!r}: GradScaler}}): its scale depends on what was tried, not on the state alone. Use "
            "bfloat16 with torch.autocast, which needs no scaler.",
        )
    if not (hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")):
        raise Refused(
            "UnsupportedState",
            f"State(extra={{{name!r}: {type(thing).__name__}}}) needs the methods state_dict and load_state_dict.",
        )
    tensors = {}
    coded = encode(thing.state_dict(), prefix, tensors)
    return tensors, coded


def _require_names(found, expected, where):
    found, expected = set(found), set(expected)
    if found == expected:
        return
    new, gone = sorted(found - expected)[:3], sorted(expected - found)[:3]
    raise Refused(
        "StateChanged",
        f"The tensors of {where} are others than after the first step: new {new}, gone {gone}. Make all of them in "
        "build() or in the first step: the workers hold memory for these alone.",
    )


def _is_elsewhere(name, tensor, home):
    if tensor.shape != home.shape or tensor.dtype != home.dtype:
        raise Refused(
            "StateChanged",
            f"{name} became {tensor.dtype} {tuple(tensor.shape)} and was {home.dtype} {tuple(home.shape)}: a tensor of "
            "the state must keep its type and shape.",
        )
    return tensor.numel() > 0 and tensor.data_ptr() != home.data_ptr()
