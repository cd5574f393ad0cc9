"""The samples, and the loss of a micro-batch of them."""

import dataclasses
import operator
import typing

from .errors import Refused


def integer(value, name, least):
    """The int of any kind of integer, NumPy's too."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number < 2**63:
        raise ValueError(f"{name}={value!r}: give an integer from {least} to 2**63 - 1.")
    return number


@dataclasses.dataclass(frozen=True)
class Weighted:
    """A loss that is a sum over so many tokens (or images, ...): the step's loss is the sum of all sums over the sum
    of all weights, whichever way the micro-batches are shared out. The weights of a step add up to less than 2**31.
    """

    loss_sum: typing.Any  # a tensor of one element
    weight: int


class Indexed:
    """A dataset with a length and an index. Which samples a micro-batch has is the engine's to say.

    micro_batch: samples of one forward pass; micro_batches: how many make a step. None: as the job's manifest says.
    seed: the job's, as Job(seed=) says it, when it runs alone. collate: list of samples -> batch; PyTorch's by default.
    workers: processes that load micro-batches ahead; 0: they are loaded in the main thread. The bits are the same.
    """

    def __init__(self, dataset, micro_batch=None, micro_batches=None, seed=None, collate=None, workers=0):
        self.dataset = dataset
        self.micro_batch = None if micro_batch is None else integer(micro_batch, "Indexed(micro_batch)", 1)
        self.micro_batches = None if micro_batches is None else integer(micro_batches, "Indexed(micro_batches)", 1)
        self.seed = None if seed is None else integer(seed, "Indexed(seed)", 0)
        self.workers = integer(workers, "Indexed(workers)", 0)
        self._collate = collate

    def __len__(self):
        return len(self.dataset)

    def check(self):
        """Refuses what has no index."""
        from torch.utils.data import IterableDataset

        indexed = hasattr(self.dataset, "__getitem__") and hasattr(self.dataset, "__len__")
        if isinstance(self.dataset, IterableDataset) or not indexed:
            raise Refused(
                "IterableDataset",
                f"{type(self.dataset).__name__} has no index: a sample of a stream cannot be computed again on another "
                "worker. Give a map-style dataset with __len__ and __getitem__, for example a list of offsets into "
                "the files.",
            )
        if len(self.dataset) == 0:
            raise Refused("DatasetEmpty", f"The dataset ({type(self.dataset).__name__}) has no samples.")

    def load(self, ids):
        """The micro-batch of these samples."""
        samples = [self.dataset[index] for index in ids]
        if self._collate is None:
            from torch.utils.data import default_collate

            self._collate = default_collate
        return self._collate(samples)


def require_indexed(data, name):
    if isinstance(data, Indexed):
        return
    from torch.utils.data import DataLoader

    is_loader = isinstance(data, DataLoader)
    dataset, more = ("loader.dataset", ", collate=loader.collate_fn") if is_loader else ("dataset", "")
    raise TypeError(
        f"Job({name}=) is a {type(data).__name__}: which samples a micro-batch has is the engine's to say. Give "
        f"rubato.Indexed({dataset}, micro_batch=2, micro_batches=8{more}), with your numbers."
    )


def batch_shape(training, data):
    """(samples of a micro-batch, micro-batches of a step), which the manifest and the script must agree on."""
    batch = training.get("batch")
    if not batch:
        if data.micro_batch and data.micro_batches:
            return data.micro_batch, data.micro_batches
        raise Refused(
            "BatchMismatch",
            "Neither the manifest (training.batch) nor the script (Indexed(micro_batch=, micro_batches=)) gives the "
            "shape of a batch.",
        )
    micro, whole = batch["micro"], batch["global"]
    manifest = f"the manifest says training.batch.micro {micro} and training.batch.global {whole}"
    if whole % micro:
        raise Refused("BatchMismatch", f"A step must be whole micro-batches, but {manifest}.")
    micro_batches = whole // micro
    if data.micro_batch not in (None, micro) or data.micro_batches not in (None, micro_batches):
        raise Refused(
            "BatchMismatch",
            f"The script says Indexed(micro_batch={data.micro_batch}, micro_batches={data.micro_batches}), but "
            f"{manifest}, that is {micro_batches} micro-batches of {micro}. Change one of them, or leave the shape out "
            "of the script.",
        )
    return micro, micro_batches
