"""Memory of runs: what they take, by the sizes of models and batches, and whether it is there before they begin."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from harness.core.errors import UserError
from harness.core.execution.exact.row_product import exact_sizes
from harness.core.execution.memory import Room, resident, room
from harness.core.flat_model import Ravel
from harness.core.units import size
from harness.simulation.dry_run import DryChannel, DryClients, with_some_noise
from harness.simulation.evaluation import CHUNK
from harness.simulation.hollow import LARGE, by_shapes
from harness.simulation.setup import Execution, Prepared, Setup
from harness.simulation.simulation import Simulation, divisible
from harness.simulation.stacking import sizes

BASELINE = 300 * 10**6  # bytes of the interpreter with torch and this package
# Copies of a client's model and batch that a round has at once: 4 (FedAvg) to 18 (Ditto) in eighteen kinds of runs.
# A batch alone has 2, of which one is left while the next is drawn.
LEAST, LEAST_BATCH, USUAL = 3, 1, 12
BY_SAMPLE = 3  # copies of the clipped gradients of single samples, beside these
READ = 2  # copies of all clients' own models in an evaluation
# Copies of the activations of a batch: those for the backward pass, then also gradients and windows of filters.
USUAL_KEPT, USUAL_EVALUATED = 2, 4
MENTIONED = 0.1  # share of the free memory above which a run says what it needs


class Need(NamedTuple):
    """Bytes that a run takes.

    Attributes
    ----------
    data : int
        Samples, who holds them, and the frozen part of the model: one copy for all clients and runs.
    least, usual : int
        What it takes beside them and the interpreter: hardly any run less than ``least``, and most runs up to three
        times more or less than ``usual``. Attacks and callbacks are not counted.
    """

    data: int
    least: int
    usual: int

    def peak(self, runs: int = 1) -> int:
        """Return the bytes of a process at its peak that makes so many such runs side by side."""
        return BASELINE + self.data + runs * self.usual


class Fit(NamedTuple):
    """Fit of a run into memory.

    Attributes
    ----------
    setup : Prepared
        The run, with its cohort in chunks if it may only fit so.
    most : int
        How many such runs fit side by side.
    note : str
        What the run takes and what there is; empty if that is far more, or unknown.
    """

    setup: Prepared
    most: int
    note: str = ""


class Activations(NamedTuple):
    """Bytes that a network makes of one sample: all that it keeps for the backward pass, and the largest tensor."""

    kept: int = 0
    largest: int = 0


def needed(setup: Prepared) -> Need:
    """Estimate the memory of a run from the number of clients that compute at once, their models and batches."""
    clients, model, batch = sizes(setup)
    in_chunks = setup.in_chunks or (
        setup.in_chunks is None and setup.executor.mode == "loop" and divisible(setup)
    )
    threads = min(clients, setup.executor.threads)
    at_once = threads + 1 if in_chunks else clients  # and the server's
    computing = clients if setup.executor.mode == "vmap" and not in_chunks else threads
    by_sample = computing * _width(setup, batch) * model if _by_sample(setup) else 0
    size_of_entry = setup.federation.pool.x.element_size()
    rows, read = _kept(setup, clients)
    least = LEAST * at_once * model + LEAST_BATCH * at_once * batch + by_sample + rows + read
    usual = USUAL * at_once * (model + batch) + BY_SAMPLE * by_sample + rows + READ * read
    made = _activations(setup)
    kept = (
        computing * made.kept * (1 if _by_sample(setup) and setup.executor.singly else _width(setup, batch))
    )
    held = setup.federation.counts("test")
    of_client, of_all = (min(CHUNK, int(count)) * made.largest for count in (held.max(), held.sum()))
    surely = 0 if setup.compression.alpha else max(kept, of_client)  # pruned networks make less
    return Need(
        _data(setup),
        size_of_entry * least + surely,
        size_of_entry * usual + max(USUAL_KEPT * kept, USUAL_EVALUATED * of_all),
    )


def _by_sample(setup: Prepared) -> bool:
    """Whether a run clips the gradients of single samples."""
    return setup.privacy is not None and setup.privacy.by_gradient and not setup.privacy.ghost


def _width(setup: Prepared, batch: int) -> int:
    return batch // max(1, setup.federation.pool.x[0].numel())


def _activations(setup: Prepared) -> Activations:
    """Return what the network of a run makes of one sample; nothing without a network.

    It is applied to two samples and to three: what grows is made of samples, and the rest of weights. Of a single
    sample some layers make no copy, and others take none.
    """
    if setup.problem.module is None:
        return Activations()
    network, sample = Ravel(setup.problem.module), setup.federation.pool.x[0]
    two, three = (_kept_tensors(network, sample.expand(count, *sample.shape)) for count in (2, 3))
    # A user's layers may keep more for each sample of a larger batch.
    grown = [max(0, more - less) for less, more in zip(two, three, strict=False)]
    return Activations(max(0, sum(three) - sum(two)), max(grown, default=0))


def _kept_tensors(network: Ravel, samples: Tensor) -> list[int]:
    """Return the bytes of the tensors that a network keeps of samples besides these."""
    vector = torch.zeros(network.size, dtype=samples.dtype, device=samples.device, requires_grad=True)
    inputs = samples.clone()
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() != inputs.data_ptr():
            kept[memory.data_ptr()] = memory
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(keep, lambda tensor: tensor), exact_sizes():
        network(vector, inputs)
    return [memory.nbytes() for memory in kept.values()]


def fit(setup: Prepared, execution: Execution, runs: int = 1) -> Fit:
    """Return how a run fits into the memory that is left, beside up to so many others like it.

    Raises
    ------
    UserError
        If it takes more in any case.
    """
    there = _left(execution)
    if there is None or setup.federation.pool.x.device.type != "cpu":
        return Fit(setup, runs)
    need = needed(setup)
    if need.usual > there.bytes and divisible(setup):
        setup = replace(setup, in_chunks=True)
        need = needed(setup)
    if need.least > there.bytes:
        raise UserError(_refusal(setup, need, there, execution))
    most = 1 if setup.in_chunks else max(1, there.bytes // max(1, need.usual))
    note = ""
    if setup.in_chunks or need.usual > MENTIONED * there.bytes:
        turns = "; to save memory, its clients are computed one after another" if setup.in_chunks else ""
        note = f"the run takes roughly {size(need.usual)} more memory, and {_described(there)}{turns}"
    return Fit(setup, most, note)


def _kept(setup: Prepared, clients: int) -> tuple[int, int]:
    """Return the entries of the rows that absent clients keep in the end, and of those that evaluations read.

    Rows that nobody has written take no memory, but models of all clients are evaluated together.
    """
    total, (_, model, _) = setup.training.clients, sizes(setup)
    absent = max(0, total - clients)
    if absent * model < LARGE:  # or there are none
        return 0, 0
    by_client, evaluated = by_shapes(with_some_noise(setup), _widths)
    come = total * (1 - (1 - clients / total) ** setup.spec.rounds)  # at least once, as expected
    return int(max(0.0, come - clients) * by_client), absent * evaluated


def _widths(setup: Setup) -> tuple[int, int]:
    """Return the entries of the rows that each client keeps, and of its own model in an evaluation."""
    run = Simulation.from_setup(setup, clients=DryClients, evaluated_clients=DryClients, channel=DryChannel)
    models = run.personal() if run.problem.predict is not None else None
    evaluated = models.shape[-1] if isinstance(models, Tensor) and models.ndim > 1 else 0
    return sum(field.shape[-1] for field in run.state if field.ndim > 1), evaluated


def _data(setup: Prepared) -> int:
    held = {each.untyped_storage().data_ptr(): each for run in setup.each for each in run.federation.pool}
    splits = [each for run in setup.each for each in run.federation.splits.values()]
    frozen = () if setup.problem.module is None else setup.problem.module.buffers()
    return sum(each.nbytes for each in (*held.values(), *splits, *frozen))


def _left(execution: Execution) -> Room | None:
    """Return the memory that is left, for one of several workers its share."""
    there = room()
    if there is None or execution.memory is None:
        return there
    return min(there, Room(max(0, execution.memory - resident()), "the share of one of several workers"))


def _described(there: Room) -> str:
    return f"{size(there.bytes)} are left ({there.limit})"


def _refusal(setup: Prepared, need: Need, there: Room, execution: Execution) -> str:
    clients, model, batch = sizes(setup)
    activations = _width(setup, batch) * _activations(setup).kept / setup.federation.pool.x.element_size()
    ways = {
        "fewer clients per round (cohort.size)": clients > 1,
        "fewer clients (partition.clients)": any(_kept(setup, clients)),
        "smaller batches (algorithm.batch_size)": batch > model / 4 or activations > model,
        "--vectorize loop": setup.executor.mode == "vmap",
        "fewer --jobs": execution.memory is not None,
        "a smaller model": setup.spec.model is not None,
        "another machine": True,
    }
    use = [way for way, helps in ways.items() if helps]
    return (
        f"memory: the run takes at least {size(need.least)}, and {_described(there)}; use {' or '.join(use)}"
    )
