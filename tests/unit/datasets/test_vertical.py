"""Vertical partitions: who holds which columns, or which part of a picture, of the same people."""

import numpy as np
import pytest
import torch

from datasets.dataset import Dataset
from datasets.errors import FederationError
from datasets.federation import federate
from datasets.partition import Iid, PartitionError
from datasets.splitting import Splitting
from datasets.vertical import VERTICAL, Columns, Quadrants

NAMES = ("age", "sex_f", "sex_m", "job=a", "job=b", "pay")


def whole(x, *, limit=None, clients=1):
    """Return everybody at one client; sample i of a table is 10 i + column."""
    dataset = Dataset(
        name="made up",
        x=x,
        y=torch.arange(len(x)) % 2,
        classes=("0", "1"),
        source="made up",
        digest="d",
        features=NAMES if x.ndim == 2 else (),
    )
    return federate(dataset, Iid(), clients, np.random.default_rng(0), Splitting(test=0.25, limit=limit))


def table(**options):
    return whole(10.0 * torch.arange(12)[:, None] + torch.arange(6), **options)


def held(federation, split="train"):
    return federation.pool.at(federation.splits[split])


def test_even_blocks_are_padded_to_the_widest():
    """Six columns for four parties: 2, 2, 1 and 1."""
    x = held(Columns()(table(), NAMES, 4)).x
    assert (x[..., 0] % 10).unique(dim=1).squeeze(1).tolist() == [0, 2, 4, 5]
    assert (x[:2, :, 1] % 10).unique(dim=1).squeeze(1).tolist() == [1, 3]
    assert not x[2:, :, 1].any()


def test_columns_by_name_and_by_the_name_of_a_family():
    """sex is both of its columns, job=b one alone; pay and job=a are nobody's."""
    cut = Columns(blocks=(("sex", "age"), ("job=b",)))
    federation = cut(table(), NAMES, None)
    x = held(federation).x
    assert federation.clients == 2 and x.shape[-1] == 3
    assert (x[0] % 10).unique(dim=0).tolist() == [[1, 2, 0]]
    assert (x[1] % 10)[:, 0].unique().tolist() == [4] and not x[1, :, 1:].any()
    assert cut(table(), NAMES, 2).clients == 2


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("limit", [None, 8])
def test_sample_number_i_is_the_same_person_everywhere(split, limit):
    """The tens of the features say who it is, and the labels agree; of a limited data set no more is kept."""
    federation = Columns()(table(limit=limit), NAMES, 3)
    batch = held(federation, split)
    people = (batch.x // 10)[..., 0]
    assert torch.equal(people, people[:1].expand_as(people)) and len(people[0].unique()) == people.shape[1]
    assert torch.equal(batch.y, people.long() % 2)
    assert len(federation.pool.y) == 3 * (limit or 12)
    assert federation.public == ("labels",)


def test_quadrants_are_the_picture_in_four():
    """Pixels of a 4 x 6 picture, two channels: rows 0-1 and 2-3, columns 0-2 and 3-5, row by row."""
    pictures = torch.arange(12 * 2 * 4 * 6).view(12, 2, 4, 6).float()
    federation = Quadrants()(whole(pictures), (), 4)
    x = held(federation).x
    assert x.shape[2:] == (2, 2, 3)
    top, bottom = torch.cat([x[0], x[1]], -1), torch.cat([x[2], x[3]], -1)
    everybody = held(whole(pictures)).x[0]
    assert torch.equal(torch.cat([top, bottom], -2), everybody)


def test_other_grids_make_other_numbers_of_parties():
    strips = Quadrants(grid=(1, 3))(whole(torch.zeros(12, 1, 4, 6)), (), None)
    assert strips.clients == 3 and strips.pool.x.shape[1:] == (1, 4, 2)


PICTURES = torch.zeros(12, 1, 4, 6)
REFUSED = [
    (lambda: Columns()(table(), NAMES, 7), "between 1 and 6"),
    (lambda: Columns(blocks=(("agee",),))(table(), NAMES, None), "did you mean 'age'"),
    (lambda: Columns(blocks=(("sex",), ("sex_f",)))(table(), NAMES, None), "given twice: \\['sex_f'\\]"),
    (lambda: Columns(blocks=(("sex",), ()))(table(), NAMES, None), "a party has no columns"),
    (lambda: Columns(blocks=(("sex",), ("age",)))(table(), NAMES, 3), "2 blocks for 3 clients"),
    (lambda: Columns(blocks=(("sex",),))(whole(PICTURES), (), None), "no named columns"),
    (lambda: Columns()(table(clients=2), NAMES, 2), "one client's data"),
    (lambda: Quadrants()(table(), NAMES, None), "not images"),
    (lambda: Quadrants(grid=(3, 2))(whole(PICTURES), (), None), "4 x 6 cannot be cut into 3 x 2"),
    (lambda: Quadrants()(whole(PICTURES), (), 3), "2 x 2 tiles for 3 clients"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_cannot_be_cut_is_refused(make, message):
    with pytest.raises((PartitionError, FederationError), match=message):
        make()


def test_every_vertical_partition_is_listed_by_its_name():
    assert set(VERTICAL) == {"columns", "quadrants"} and all(VERTICAL[name].kind == name for name in VERTICAL)
