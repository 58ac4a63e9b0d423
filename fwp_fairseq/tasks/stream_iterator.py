"""Makes batches of segments in the order of their streams, with the fast weights carried along the streams."""

from fairseq.data.iterators import CountingIterator, EpochBatchIterator
from fairseq.distributed import utils as distributed_utils
from torch import Tensor

from ..modules.carried_state import CarriedState, States, changed
from .streams import Streams

_KEY = "streams"


class StreamIterator(EpochBatchIterator):
    """Reads the streams of one process from the first segment to the last.

    Every batch contains the state from which the model continues. A checkpoint in mid-epoch saves the state with the
    position in the data, because the fast weights depend on the parameters of every update since the epoch began, and
    could only be recomputed by repeating the epoch. For all processes together, there are at most
    ``rows * layers * heads * d_dot * (d_value + 1)`` numbers of 4 bytes.

    Args:
        streams: the streams of all processes.
        process: the number of this process, which reads its share of the rows.
        processes: how many processes there are.
        carries: whether there is a state. Otherwise each segment is read as the beginning of a stream.
    """

    def __init__(self, streams: Streams, process: int, processes: int, carries: bool, **options):
        self.own = slice(*(streams.rows * n // processes for n in (process, process + 1)))
        self.processes, self.carries = processes, carries
        self.state: CarriedState | None = None
        self._restored: States | None = None
        self._gathered: States | None = None
        rows = range(streams.rows)[self.own]
        super().__init__(
            dataset=streams,
            collate_fn=streams.collater,
            batch_sampler=[[step * streams.rows + row for row in rows] for step in range(len(streams.cut))],
            disable_shuffling=True,
            **options,
        )

    def _get_iterator_for_epoch(self, epoch, shuffle, fix_batches_to_gpus=False, offset=0):
        batches = super()._get_iterator_for_epoch(epoch, shuffle, fix_batches_to_gpus, offset)
        if batches is None or not self.carries:
            return batches
        self.state, self._restored = CarriedState(self._restored or {}), None
        state = self.state

        def with_state(batch: dict) -> dict:
            batch["net_input"]["segment"].state = state
            return batch

        return CountingIterator(map(with_state, batches), start=offset, total=len(batches))

    def before_saving(self, group) -> None:
        """Gathers the fast weights of all processes; each process calls this before one writes a checkpoint."""
        self._gathered = None
        if self.state is None or self.end_of_epoch():
            return
        self._gathered = self.state.states
        if self.processes > 1:

            def gathered(tensor):
                return distributed_utils.all_gather(tensor, group, True).flatten(0, 1)

            self._gathered = changed(dict(sorted(self._gathered.items())), gathered)

    def _cut(self) -> dict:
        """Describes how the data were cut, which determines the meaning of a position."""
        data = self.dataset
        longest = int((data.cut[..., 1] - data.cut[..., 0]).max(initial=0))
        return {"rows": data.rows, "steps": len(data.cut), "tokens": len(data.text), "tokens of a row": longest}

    def state_dict(self) -> dict:
        state = super().state_dict()
        if state["iterations_in_epoch"]:
            state[_KEY] = {**self._cut(), "weights": changed(self._gathered or {}, Tensor.cpu)}
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        if state_dict.get("iterations_in_epoch", 0):
            saved = state_dict.get(_KEY)
            if saved is None:
                raise ValueError(
                    "the checkpoint was written in mid-epoch by a task without streams: expected one of "
                    "fwp_language_modeling, or --reset-dataloader, which begins the epoch anew"
                )
            for name, here in self._cut().items():
                if saved.get(name, here) != here:  # older checkpoints have no tokens of a row
                    raise ValueError(
                        f"the checkpoint was written in mid-epoch with other streams: expected {saved[name]} {name}, "
                        f"actual {here} (rows are --batch-size times processes, tokens of a row --tokens-per-sample, "
                        "and steps follow from these); "
                        "--reset-dataloader begins the epoch anew"
                    )
            self._restored = changed(saved["weights"], lambda x: x[self.own])
        # Each process reads every step, so that the number of processes does not change the position.
        super().load_state_dict({**state_dict, "num_shards": self.num_shards})
