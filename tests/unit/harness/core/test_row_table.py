"""Tables of rows: values like those of tensors, whatever is done to other versions of them."""

import copy
import pickle

import pytest
import torch
from torch import Tensor

from harness.core.clients import row_table
from harness.core.clients.row_table import RowTable, of_run, stacked
from tests.support.wire import cohort

TOTAL, P = 7, 3


def start(kind: str) -> Tensor:
    """Return rows ``(TOTAL, P)``: all views of one, or each its own."""
    generator = torch.Generator().manual_seed(5)
    if kind == "one":
        return torch.randn(P, generator=generator).expand(TOTAL, P)
    return torch.randn(TOTAL, P, generator=generator)


@pytest.mark.parametrize("kind", ["one", "own"])
def test_every_version_keeps_its_value(kind):
    """Any version may be read and continued, in any order; tensors copied at each step tell what is right."""
    generator = torch.Generator().manual_seed(0)
    full = start(kind)
    versions: list[tuple[Tensor, Tensor]] = [(full, full.clone())]
    for _ in range(60):
        which = int(torch.randint(len(versions), (1,), generator=generator))
        table, value = versions[max(which, len(versions) - 3)] if which % 2 else versions[which]
        ids = torch.randperm(TOTAL, generator=generator)[:2].sort().values
        rows = torch.randn(2, P, generator=generator)
        clients = cohort(ids=ids.tolist(), counts=[4] * TOTAL)
        assert torch.equal(clients.take(table), value[ids])
        expected = value.clone()
        expected[ids] = rows
        versions.append((clients.put(table, rows), expected))
    for table, value in versions:
        assert torch.equal(table, value) and table.shape == value.shape
    assert torch.equal(full, start(kind)), "the tensor that the first table was made of"


def test_a_version_has_written_what_it_and_those_before_it_have():
    """Read in any order; a checkpoint of the round before held rows of the round that had been broken off."""
    for order in ((0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        versions = [RowTable.of(start("one"))]
        for places in ([1, 4], [4, 2], [0, 1, 2, 3, 4, 5, 6]):
            versions.append(versions[-1].with_rows(torch.tensor(places), torch.ones(len(places), P)))
        found = {number: versions[number].packed()["places"].tolist() for number in order}
        assert [found[number] for number in range(4)] == [[], [1, 4], [1, 2, 4], [0, 1, 2, 3, 4, 5, 6]]
        again = versions[0].with_rows(torch.tensor([6, 5]), torch.ones(2, P))
        again = again.with_rows(torch.arange(TOTAL), torch.zeros(TOTAL, P))
        assert again.packed()["places"].tolist() == list(range(TOTAL)) and not again.dense().any()


def test_an_interrupt_while_rows_are_written_spares_the_older_version(monkeypatch):
    table = RowTable.of(start("own")).with_rows(torch.tensor([1]), torch.ones(1, P))
    value, write = table.dense(), row_table._Store.write

    def interrupted(self, places, rows):
        if len(places) == 3:
            write(self, places[:1], rows[:1])
            raise KeyboardInterrupt
        write(self, places, rows)

    with monkeypatch.context() as patch:
        patch.setattr(row_table._Store, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            table.with_rows(torch.tensor([1, 2, 3]), torch.zeros(3, P))
    assert torch.equal(table, value)


def test_a_long_line_of_versions_is_followed_to_its_end():
    first = table = RowTable.of(start("one"))
    for number in range(3000):
        table = table.with_rows(torch.tensor([number % TOTAL]), torch.full((1, P), float(number)))
    assert torch.equal(first, start("one"))


def test_torch_and_python_see_the_value():
    table = RowTable.of(start("own")).with_rows(torch.tensor([4]), torch.ones(1, P))
    value = start("own")
    value[4] = 1.0
    assert table.tolist() == value.tolist() and (table.numpy() == value.numpy()).all()
    assert repr(value) in repr(table)
    assert torch.equal((2 * table - 1).mean(0), (2 * value - 1).mean(0))
    assert torch.equal(table[2:5], value[2:5]) and type(table[2:5]) is Tensor
    assert torch.equal(torch.func.vmap(lambda row: row.norm())(table), value.norm(dim=-1))


def test_a_table_cannot_be_changed_in_place():
    table = RowTable.of(start("own"))
    for change in (lambda: table.add_(1.0), lambda: table.__setitem__(0, 1.0), lambda: table.zero_()):
        with pytest.raises(TypeError, match=r"clients\.put"):
            change()
    assert torch.equal(torch.zeros(TOTAL, P).copy_(table), start("own")), "it may be copied from"


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))])
def test_a_copy_goes_its_own_way(copied):
    table = RowTable.of(start("one")).with_rows(torch.tensor([0]), torch.ones(1, P))
    value, other = table.dense(), copied(table)
    changed = other.with_rows(torch.tensor([0, 1]), torch.zeros(2, P))
    assert isinstance(changed, RowTable) and torch.equal(table, value)


@pytest.mark.parametrize("kind", ["one", "own"])
def test_a_file_holds_the_rows_that_have_been_written(kind):
    table = RowTable.of(start(kind)).with_rows(torch.tensor([5, 2]), torch.ones(2, P))
    packed = table.packed()
    assert packed["places"].tolist() == ([2, 5] if kind == "one" else list(range(TOTAL)))
    assert torch.equal(RowTable.unpacked(packed), table)


def test_tables_of_runs_are_stacked_and_taken_apart():
    runs = [RowTable.of(start("one")), start("own"), RowTable.of(start("own") + 1)]
    runs[0] = runs[0].with_rows(torch.tensor([3]), torch.ones(1, P))
    together = stacked(runs)
    assert isinstance(together, RowTable) and torch.equal(together, torch.stack([one + 0 for one in runs]))
    for number, one in enumerate(runs):
        assert torch.equal(of_run(together, number), one)
    assert of_run(together, 0).packed()["places"].tolist() == [3]
    assert type(stacked([start("own")] * 2)) is Tensor
