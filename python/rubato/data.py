"""The samples, and the loss of a micro-batch of them."""

import dataclasses
import typing

from .errors import Refused


@dataclasses.dataclass(frozen=True)
class Weighted:
    """A loss that is a sum over so many tokens (or pixels, ...): the step's loss is the sum of all sums over the sum
    of all weights, whichever way the micro-batches are shared out.
    """

    loss_sum: typing.Any  # a tensor of one element
    weight: int


class Indexed:
    """A dataset with a length and an index. Which samples a micro-batch has is the engine's to say.

    micro_batch: samples of one forward pass; micro_batches: how many make a step. None: as the job's manifest says.
    seed: of the order of the samples, when the job runs alone. collate: list of samples -> batch; PyTorch's by default.
    workers: processes that load micro-batches ahead; 0: they are loaded in the main thread. The bits are the same.
    """

    def __init__(self, dataset, micro_batch=None, micro_batches=None, seed=None, collate=None, workers=0):
        self.dataset = dataset
        self.micro_batch = micro_batch
        self.micro_batches = micro_batches
        self.seed = seed
        self.workers = workers
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
