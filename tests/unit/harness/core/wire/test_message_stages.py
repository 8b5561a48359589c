"""The stages of a message: their order as printed and as executed, and the diagnostics that they note."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import harness.core.wire.channel
from datasets.federation import Batch, Federation
from harness.core.clients.clients import Clients
from harness.core.cost import Cost
from harness.core.execution.vectorize import ClientExecutor
from harness.core.per_run import side_by_side
from harness.core.public import Public
from harness.core.settings.compression import Compression
from harness.core.wire.channel import Channel
from harness.core.wire.client_chunks import round_in_chunks
from harness.core.wire.message import Increment
from harness.core.wire.pipeline import ORDERS, local, public, separate, uncoded
from harness.core.wire.stages import Stages
from harness.problems.classify import classifier
from tests.support.wire import privacy as privacy_of

SAMPLES = (4, 8, 2, 6)  # of each client
EXACT = Compression(codec="float64")
NORMS = (1.0, 2.0, 3.0, 10.0)


def cohort(seeds=(0,), ids=None, participation_mask=None, expected=None):
    numbers = torch.arange(len(SAMPLES)) if ids is None else torch.tensor(ids)
    total = sum(SAMPLES)
    y = torch.zeros(total, dtype=torch.int64)
    pool = Batch(torch.ones(total, 3, dtype=torch.float64), y, y, torch.ones(total, dtype=torch.float64))
    rows = [torch.arange(sum(SAMPLES[:n]), sum(SAMPLES[: n + 1])) for n in range(len(SAMPLES))]
    index = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    if len(seeds) > 1:
        index = index.expand(len(seeds), *index.shape)
        numbers = numbers if numbers.ndim > 1 else numbers.expand(len(seeds), -1)
    return Clients(
        Federation(pool, {"train": index}, ("0", "1"), (), "made up", ""),
        classifier(nn.Linear(3, 2)),
        ClientExecutor("loop", threads=2),
        seeds=seeds,
        round=0,
        ids=numbers,
        cost=Cost(tuple(numbers.shape[:-1])),
        participation_mask=None if participation_mask is None else torch.tensor(participation_mask),
        expected=expected,
    )


def mechanism(placement, clip=2.5, z=0.0, **others):
    return privacy_of(placement, clip, z, **others)


def messages(norms=NORMS, size=4):
    """Return rows ``(C, size)`` of these norms: equal entries."""
    return torch.tensor(norms, dtype=torch.float64)[:, None].expand(-1, size) / size**0.5


def diagnosed(privacy=None, clients=None, compression=EXACT, **options):
    return Channel(clients or cohort(), privacy=privacy, compression=compression, diagnose=True, **options)


# --- order ------------------------------------------------------------------------------------------


def names(order):
    """Return the names of an order's stages."""
    noted = []

    class Names:
        def __getattr__(self, name):
            def stage(*arguments):
                noted.append(name)
                return SimpleNamespace(row=None)

            return stage

    order(Names(), None)
    return noted


class Recorder(Channel):
    """A channel that writes down which stages a message goes through."""

    def __init__(self, *arguments, **options):
        self.order = order = []

        def recorded(name):
            def stage(self, *made):
                order.append(name)
                return getattr(Stages, name)(self, *made)

            return stage

        every = {name for each in (*ORDERS.values(), public) for name in names(each)}
        stages = type("Recorded", (Stages,), {name: recorded(name) for name in every})
        super().__init__(*arguments, stages=stages, **options)


def printed_order():
    """Return the columns of the table in docs/design.md."""
    design = Path(harness.core.wire.channel.__file__).parents[3] / "docs" / "design.md"
    lines = re.findall(r"^\| \d+ \| (.*) \| (.*) \| (.*) \|$", design.read_text(), re.MULTILINE)
    return [[name.replace(" ", "_") for name in column if name] for column in zip(*lines, strict=True)]


@pytest.mark.parametrize("placement", ["local", "central", "distributed"])
def test_the_printed_order_is_the_executed_one(placement):
    """With everything that a message can have: base, known terms, scales, residuals, noise, a server clip."""
    setting = Compression(beta=0.5, codec="float16", error_feedback=True)
    if placement == "distributed":
        setting = Compression(beta=0.5, select="random_k")
    ones = torch.ones(4, 4, dtype=torch.float64)
    way = Recorder(
        cohort(),
        privacy=mechanism(placement, z=1.0, server_clip=1.0),
        compression=setting,
        again=lambda clients, way: way.mean(clients.take(ones, mean=ones[0])),
    )
    way.mean(Increment(messages(), of=ones, scale=Public(2.0)))
    columns = dict(zip(("local", "central", "distributed"), printed_order(), strict=True))
    assert way.order == columns[placement]


def test_messages_without_an_average_take_the_same_stages_in_the_same_order():
    assert [stage for stage in names(local) if stage in names(separate)] == names(separate)
    assert [stage for stage in names(separate) if stage in names(uncoded)] == names(uncoded)
    way = Recorder(cohort(), privacy=mechanism("local", z=1.0), compression=EXACT)
    way.gather(messages())
    assert way.order == names(separate)
    way.order.clear()
    way.down(torch.ones(4, dtype=torch.float64))
    assert way.order == names(public)


def test_every_stage_has_a_name_in_the_table():
    columns = zip(printed_order(), ORDERS.values(), strict=True)
    assert all(column == names(order) for column, order in columns)


# --- diagnostics ------------------------------------------------------------------------------------


def test_without_privacy_there_are_the_norms_of_the_increments_only():
    """Norms 1, 2, 3, 10: mean 4, median 2.5, p10 = 1 + 0.3 (2 - 1), p90 = 3 + 0.7 (10 - 3)."""
    way = diagnosed()
    way.mean(Increment(messages() + 7, of=torch.full((4, 4), 7.0, dtype=torch.float64)))
    found = {name: float(value) for name, value in way.diagnostics.items()}
    expected = {"mean": 4.0, "p10": 1.3, "p50": 2.5, "p90": 7.9}
    assert found == pytest.approx({f"update_norm_{name}": value for name, value in expected.items()})


@pytest.mark.parametrize("clip", [2.5, (2.5,)])
def test_the_share_of_clipped_messages_and_the_noise_over_the_clipped_signal(clip):
    """2 of 4 exceed 2.5. Noise 0.5 * 2 * 2.5 = 2.5 on 4 entries: norm 5. Signal: (1 + 2 + 2.5 + 2.5) / 4 = 2."""
    way = diagnosed(mechanism("local", clip, z=0.5))
    way.gather(messages())
    found = way.diagnostics
    assert found["clipped_share"] == 0.5 and found["clip_norm"] == 2.5
    assert float(found["noise_std"]) == pytest.approx(2.5)
    assert float(found["noise_to_signal"]) == pytest.approx(2.5)
    assert float(found["update_norm_mean"]) == pytest.approx(4.0), "before clipping"


def test_noise_on_the_positions_of_a_public_mask_only():
    """Random-k keeps 2 of 4 entries: the noise's norm is 2.5 sqrt(2), the messages' sqrt(1/2) of theirs."""
    way = diagnosed(mechanism("local", 100.0, z=0.5), compression=Compression(beta=0.5, select="random_k"))
    way.gather(messages())
    found = way.diagnostics
    assert float(found["noise_to_signal"]) == pytest.approx(100 * 2**0.5 / (4 * 0.5**0.5))


def test_central_noise_is_compared_with_the_average():
    """Clipped to 2.5 the average has norm (1 + 2 + 2.5 + 2.5) / 4 = 2; noise 0.5 * 2.5 / 4 on 4 entries."""
    way = diagnosed(mechanism("central", z=0.5))
    way.mean(messages())
    found = way.diagnostics
    assert float(found["noise_std"]) == pytest.approx(0.3125)
    assert float(found["noise_to_signal"]) == pytest.approx(0.625 / 2)
    assert found["clipped_share"] == 0.5


def test_rows_that_pad_a_poisson_cohort_do_not_count():
    """Of norms 1, 2, 3, 10 the last is padding: mean 2, one of three exceeds 2.5."""
    way = diagnosed(
        mechanism("central"), cohort(ids=[0, 1, 2, 2], participation_mask=[1, 1, 1, 0], expected=3)
    )
    way.mean(messages())
    found = way.diagnostics
    assert float(found["update_norm_mean"]) == pytest.approx(2.0)
    assert float(found["update_norm_p50"]) == pytest.approx(2.0)
    assert float(found["clipped_share"]) == pytest.approx(1 / 3)
    empty = diagnosed(mechanism("central"), cohort(ids=[0], participation_mask=[0], expected=3))
    empty.mean(messages((1.0,)))
    assert empty.diagnostics["update_norm_mean"].isnan() and empty.diagnostics["clipped_share"].isnan()


@pytest.mark.parametrize(("placement", "clip"), [("local", 2.5), ("central", 2.5), ("central", "adaptive")])
def test_stacked_runs_have_the_figures_of_each_run_bit_for_bit(placement, clip):
    """Also with noise and clip norms of their own, and cohorts that are padded to one size."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 4, 33, generator=generator, dtype=torch.float64)
    here = [[1, 1, 1, 1], [1, 1, 0, 0]] if placement == "central" else [[1] * 4] * 2
    clips = [clip, clip if clip == "adaptive" else 0.7]
    each = [mechanism(placement, own, z=z) for own, z in zip(clips, (0.5, 1.5), strict=True)]
    each = [each[0]] * 2 if clip == "adaptive" else each
    way = diagnosed(side_by_side(each), cohort((0, 1), participation_mask=here, expected=4))
    way.mean(rows)
    for number, present in enumerate(here):
        count = sum(present)
        own = cohort((number,), ids=list(range(count)), participation_mask=[1] * count, expected=4)
        alone = diagnosed(each[number], own)
        alone.mean(rows[number, :count])
        assert way.diagnostics.keys() == alone.diagnostics.keys()
        for name, value in alone.diagnostics.items():
            assert value.shape == () and torch.equal(way.diagnostics[name][number], value), name


def test_the_first_message_of_a_round_is_the_one_that_is_looked_at():
    way = diagnosed()
    way.down(torch.full((4,), 100.0, dtype=torch.float64))
    way.gather(messages())
    way.mean(messages((50.0,) * 4))
    assert float(way.diagnostics["update_norm_mean"]) == pytest.approx(4.0)


def test_a_message_that_is_not_finite_counts_as_clipped():
    rows = messages().clone()
    rows[0, 0] = torch.nan
    way = diagnosed(mechanism("local"))
    way.gather(rows)
    assert way.diagnostics["clipped_share"] == 0.75


def test_nothing_is_shown_under_strict_privacy_or_without_being_asked():
    for way in (diagnosed(mechanism("local", z=1.0, strict=True)), Channel(cohort())):
        way.gather(messages())
        assert way.diagnostics == {}


def test_what_is_noted_changes_no_result():
    plain = Channel(cohort(), privacy=mechanism("local", z=1.0), compression=EXACT)
    assert torch.equal(plain.mean(messages()), diagnosed(mechanism("local", z=1.0)).mean(messages()))


@pytest.mark.parametrize("privacy", [None, mechanism("local", z=0.5), mechanism("central", z=0.5)])
def test_a_cohort_in_chunks_has_the_figures_of_the_whole(privacy):
    """Whichever worker thread is first."""

    class Work:
        def round(self, state, clients, channel):
            return channel.mean(clients.take(state))

    whole, chunks = diagnosed(privacy), diagnosed(privacy)
    Work().round(messages(), whole._clients, whole)
    work = partial(Work().round, messages())
    round_in_chunks(work, chunks._clients, chunks.for_client, ClientExecutor("loop", threads=2))
    assert whole.diagnostics.keys() == chunks.diagnostics.keys()
    for name, value in whole.diagnostics.items():
        torch.testing.assert_close(chunks.diagnostics[name], value, msg=name)


def test_stacked_runs_may_share_one_mixing_matrix():
    """A ring of 4: each node sends 4 float64 to 2 neighbors, 256 bytes a run."""
    ring = torch.eye(4, dtype=torch.float64) / 3
    ring = ring + ring.roll(1, -1) + ring.roll(-1, -1)
    way = Channel(cohort((0, 1)), mixing=ring, compression=EXACT)
    way.mix(messages().expand(2, 4, 4))
    assert way.cost.up.tolist() == [256, 256]
