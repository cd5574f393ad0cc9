"""Values that are no tensors, as JSON and back: Python's own numbers and texts, lists, tuples and dictionaries keep
their types and their order. What is like one of them (numpy.float32, a named tuple) comes back as that one, so a state
must not hold it: is_plain() tells. Functions and types stay as build() made them.
"""

import numbers

import torch

from .errors import Refused


def encode(value, where, tensors=None):
    """JSON of a value. `where` names it in errors; its tensors, if any may be there, are put into `tensors` by name."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)  # of numpy.str_ and the like, too
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, list):
        return [encode(item, f"{where}.{index}", tensors) for index, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": encode(list(value), where, tensors)}
    if isinstance(value, dict):
        return {"dict": [[encode(key, where), encode(item, f"{where}.{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, torch.Tensor):
        if tensors is None:
            raise Refused(
                "UnsupportedState",
                f"{where} is a tensor, where only plain values are held: give a number. Tensors of the optimizer are "
                "held in optimizer.state[parameter].",
            )
        if where in tensors:
            raise Refused("UnsupportedState", f"Two tensors of the state are named {where}: rename one.")
        tensors[where] = value
        return {"tensor": where}
    if callable(value) or isinstance(value, (torch.dtype, torch.device)):
        return {"built": None}
    raise Refused(
        "UnsupportedState",
        f"{where} is a {type(value).__name__}, which cannot be sent to a new worker: use numbers, texts, lists, "
        "tuples and dictionaries.",
    )


def is_plain(value):
    """Whether decode() gives back what encode() was given, where both take it."""
    if isinstance(value, dict):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    is_own = type(value) in (bool, int, float, str, torch.Size)
    return is_own or not isinstance(value, (numbers.Real, str, list, tuple))


def decode(coded, current, tensors=None):
    """The value. `current`: the one that it takes the place of, whose functions and dictionary classes it keeps."""
    if isinstance(coded, list):
        place = current if isinstance(current, (list, tuple)) and len(current) == len(coded) else [None] * len(coded)
        return [decode(item, old, tensors) for item, old in zip(coded, place)]
    if not isinstance(coded, dict):
        return coded
    ((kind, content),) = coded.items()
    if kind == "built":
        return current
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(decode(content, current, tensors))
    place = current if isinstance(current, dict) else {}
    values = place.copy()
    values.clear()
    for coded_key, item in content:
        key = decode(coded_key, None)
        values[key] = decode(item, place.get(key), tensors)
    return values

