"""Tables: rows by id, absent rows, time decay, moments of reading, and rows that are taken back."""

import copy
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from melon import tables
from melon.errors import SettingsError
from melon.journal import undoable
from melon.kernels import policy
from melon.tables import Clock, DecayFactors, Moment, Table, TableSpec, decay_factor
from melon.types import AnyArray

SPEC = TableSpec("factors", "user", "embedding", 3, std=0.5, centre=1.0)


def table_of(rows: int, *, clock: Clock | None = None, half_life: float | None = None) -> Table:
    table = Table(SPEC, clock=clock)
    table.half_life = half_life
    table.grow(rows, np.arange(rows))
    return table


def everything(table: Table) -> AnyArray:
    return table.gather(np.arange(table.rows))


class TestRows:
    def test_gather_reads_what_scatter_wrote(self) -> None:
        table, before = table_of(6), everything(table_of(6))
        new = np.array([[1.0, 2, 3], [4, 5, 6]])
        table.scatter(np.array([4, 1]), new)
        assert np.array_equal(table.gather(np.array([[1, 4], [4, 4]])), new[np.array([[1, 0], [0, 0]])])
        untouched = np.array([0, 2, 3, 5])
        assert np.array_equal(table.gather(untouched), before[untouched])

    def test_gather_is_a_copy(self) -> None:
        table = table_of(3)
        table.gather(np.array([0, 1])).fill(0)
        assert np.array_equal(everything(table), everything(table_of(3)))

    def test_gather_has_the_shape_of_the_rows(self) -> None:
        table = table_of(3)
        assert table.gather(np.zeros((2, 0), dtype=np.int64)).shape == (2, 0, 3)
        assert table.gather(np.zeros((2, 5, 1), dtype=np.int64)).shape == (2, 5, 1, 3)

    @pytest.mark.parametrize("rows", [0, 1, 5])
    def test_absent_rows_are_zeros(self, rows: int) -> None:
        table = table_of(rows)
        absent = np.array([rows, rows + 1, 10**9])
        for reader in (table, table.view()):
            assert np.array_equal(reader.gather(absent), np.zeros((3, 3)))
            assert np.array_equal(reader.gather(absent[None]), np.zeros((1, 3, 3)))

    def test_absent_rows_stay_zeros_after_restoring_and_growing(self) -> None:
        table = table_of(9)
        small = table_of(2).state()
        table.restore(small)
        assert np.array_equal(table.gather(np.array([2, 5])), np.zeros((2, 3)))
        table.grow(3, np.array([2]))
        assert np.array_equal(everything(table), everything(table_of(3)))
        assert np.array_equal(table.gather(np.array([3])), np.zeros((1, 3)))

    @pytest.mark.parametrize("half_life", [None, 5.0])
    def test_an_empty_table_can_be_read(self, half_life: float | None) -> None:
        table = table_of(0, half_life=half_life)
        assert table.everything().shape == (0, 3)

    def test_the_dtype_is_kept(self) -> None:
        table = Table(SPEC, dtype=np.float64)
        table.grow(2, np.arange(2))
        assert table.dtype == table.gather(np.array([0])).dtype == np.float64


class TestGrowth:
    @given(st.permutations(range(8)), st.lists(st.integers(1, 7), max_size=4))
    def test_a_row_depends_on_its_id_and_not_on_the_order_of_growth(self, keys: list[int], cuts: list[int]) -> None:
        whole, parts = Table(SPEC), Table(SPEC)
        whole.grow(8, np.arange(8))
        bounds = sorted({0, 8, *cuts})
        for start, stop in itertools.pairwise(bounds):
            parts.grow(stop, np.array(keys[start:stop]))
        assert np.array_equal(everything(parts), everything(whole)[np.array(keys)])

    def test_rows_are_drawn_in_blocks_and_are_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole, pieces = Table(SPEC), Table(SPEC)
        whole.grow(20, np.arange(20))
        monkeypatch.setattr(tables, "_BLOCK", 3)
        pieces.grow(2, np.arange(2))
        pieces.grow(20, np.arange(2, 20))
        assert np.array_equal(everything(pieces), everything(whole))

    def test_rows_start_as_the_normal_of_the_spec(self) -> None:
        table = Table(TableSpec("wide", "item", "embedding", 16, std=0.3, centre=-2.0))
        table.grow(4_000, np.arange(4_000))
        values = table.everything()
        assert abs(values.mean() + 2) < 5 * 0.3 / np.sqrt(values.size)
        assert abs(values.std() - 0.3) < 5 * 0.3 / np.sqrt(2 * values.size)

    def test_tables_and_seeds_do_not_share_draws(self) -> None:
        rows = []
        for name, seed in (("a", 0), ("b", 0), ("a", 1), ("a", 0)):
            table = Table(TableSpec(name, "user", "embedding", 4, std=1.0), seed=seed)
            table.grow(1, np.array([7]))
            rows.append(tuple(everything(table)[0].tolist()))
        assert len(set(rows)) == 3
        assert rows[0] == rows[3]

    def test_without_spread_rows_start_at_the_centre(self) -> None:
        table = Table(TableSpec("bias", "user", "bias", 1, centre=0.25))
        table.grow(3, np.arange(3))
        assert everything(table).tolist() == [[0.25]] * 3

    def test_a_shared_table_has_its_rows_at_once(self) -> None:
        assert Table(TableSpec("layer", "shared", "weight", 5, std=0.1, rows=4)).rows == 4

    def test_growing_keeps_what_was_written(self) -> None:
        table, new = table_of(3), np.full((1, 3), 9.0)
        table.scatter(np.array([1]), new)
        for rows in (4, 40, 400):
            table.grow(rows, np.arange(table.rows, rows))
            assert np.array_equal(table.gather(np.array([1])), new)
            assert table.rows == rows

    def test_growing_to_fewer_rows_changes_nothing(self) -> None:
        table = table_of(5)
        table.grow(3, np.arange(0))
        assert table.rows == 5

    def test_each_new_row_needs_its_key(self) -> None:
        with pytest.raises(SettingsError, match="'factors' needs 3 keys to grow, got 2"):
            table_of(2).grow(5, np.arange(2))


class TestDecayFactors:
    @given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.integers(0, 400), st.floats(0.5, 1000))
    def test_an_idle_row_loses_half_of_itself_in_a_half_life(self, touched: list, now: int, half_life: float) -> None:
        clock = Clock()
        table, plain = table_of(4, clock=clock, half_life=half_life), everything(table_of(4))
        table.stamp(np.arange(4), np.array(touched))
        clock.now = now
        factors = [0.5 ** (max(now - moment, 0) / half_life) for moment in touched]
        expected = plain * np.array(factors, dtype=np.float32)[:, None]
        assert np.allclose(everything(table), expected, rtol=1e-6, atol=0)
        assert np.array_equal(everything(table), table.everything())
        clock.now, table.half_life = 0, None
        at = Moment(now, {SPEC.name: half_life})
        assert np.allclose(table.gather(np.arange(4), at), expected, rtol=1e-6, atol=0)
        view = table.view(at)
        rows = np.array([3, 0, 99])
        decay = view.decay(view.offsets(rows))
        assert decay is not None
        assert np.array_equal(decay[:, None] * view.storage[view.offsets(rows)], view.gather(rows))

    def test_writing_a_row_makes_it_fresh(self) -> None:
        clock = Clock()
        table = table_of(3, clock=clock, half_life=10)
        plain = everything(table)
        clock.now = 10
        assert np.allclose(everything(table), plain / 2)
        table.scatter(np.array([1]), table.gather(np.array([1])))
        clock.now = 20
        left = np.array([0.25, 0.25, 0.25])[:, None]
        assert np.allclose(everything(table), plain * left)
        assert table.state()["touched"].tolist() == [0, 10, 0]

    def test_new_rows_are_fresh(self) -> None:
        clock = Clock(100)
        table = table_of(2, clock=clock, half_life=1)
        assert np.array_equal(everything(table), everything(table_of(2)))

    def test_rows_of_the_future_do_not_grow(self) -> None:
        assert decay_factor(np.array([7]), 3, 2.0).tolist() == [1.0]

    def test_without_a_half_life_nothing_decays(self) -> None:
        clock = Clock()
        table = table_of(2, clock=clock)
        clock.now = 10**9
        assert np.array_equal(everything(table), everything(table_of(2)))


STEPS = st.lists(
    st.tuples(st.just("scatter"), st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True))
    | st.tuples(st.just("grow"), st.lists(st.integers(0, 1), max_size=9)),
    max_size=6,
)


class TestTakingBack:
    @settings(max_examples=60)
    @given(STEPS, STEPS)
    def test_a_table_that_was_put_back_is_as_before(self, past: list, batch: list) -> None:
        clock, spec = Clock(), TableSpec("state", "user", "embedding", 3)
        table, number = Table(spec, clock=clock), 0

        def run(steps: list) -> None:
            nonlocal number
            for what, rows in steps:
                number += 1
                clock.now = number
                if what == "grow":
                    table.grow(table.rows + len(rows), np.arange(len(rows)))
                    continue
                chosen = np.array([row for row in rows if row < table.rows], dtype=np.int64)
                table.scatter(chosen, np.full((len(chosen), 3), float(number)))

        run(past)
        before, size = table.state(), table.rows
        with undoable(always=True):
            run(batch)
        assert table.rows == size
        assert all(np.array_equal(held, before[part]) for part, held in table.state().items())
        assert not table.gather(np.arange(size, size + 9)).any()


class TestState:
    def test_round_trip(self) -> None:
        clock = Clock(3)
        table = table_of(5, clock=clock, half_life=2.0)
        table.scatter(np.array([1, 3]), np.ones((2, 3)))
        clock.now = 9
        again = Table(SPEC, clock=clock)
        again.half_life = 2.0
        again.restore(table.state())
        assert np.array_equal(everything(again), everything(table))
        for part, tensor in table.state().items():
            assert np.array_equal(again.state()[part], tensor)
        for one in (table, again):
            one.grow(8, np.arange(5, 8))
            one.scatter(np.array([7]), np.full((1, 3), 4.0))
        assert np.array_equal(everything(again), everything(table))

    def test_state_is_a_copy(self) -> None:
        table = table_of(3)
        state = table.state()
        state["values"].fill(0)
        table.scatter(np.array([0]), np.ones((1, 3)))
        assert np.array_equal(state["values"], np.zeros((3, 3)))
        assert np.array_equal(table.gather(np.array([1, 2])), everything(table_of(3))[1:])

    def test_restored_rows_are_a_copy(self) -> None:
        state, table = table_of(3).state(), table_of(1)
        table.restore(state)
        table.scatter(np.array([0]), np.zeros((1, 3)))
        assert np.array_equal(state["values"], everything(table_of(3)))


class TestWatch:
    """Several readers of changes, each with its own."""

    def test_each_reader_gets_what_was_written_since_it_asked(self) -> None:
        table = table_of(6)
        one = table.watch()
        table.scatter(np.array([4, 1]), np.zeros((2, SPEC.dim)))
        other = table.watch()
        table.stamp(np.array([3]), np.array([9]))
        assert sorted(one.take().tolist()) == [1, 3, 4]
        assert other.take().tolist() == [3]
        assert not len(one.take())
        table.grow(8, np.array([6, 7]))
        assert one.take().tolist() == [6, 7]

    def test_what_was_taken_back_has_not_changed_unless_a_reader_was_told(self) -> None:
        table, rows = table_of(5), np.array([2])
        one, other = table.watch(), table.watch()
        table.scatter(np.array([4]), np.ones((1, 3)))
        with undoable(always=True):
            table.grow(6, np.arange(1))
            table.scatter(rows, np.ones((1, 3)))
            table.scatter(rows, np.zeros((1, 3)))
            assert other.take().tolist() == [4, 5, 2, 2]
        assert one.take().tolist() == [4]
        assert other.take().tolist() == [2, 2, 5]

    def test_many_writes_are_brought_together_and_a_copy_has_no_reader(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tables, "_MOST_RECORDS", 3)
        table = table_of(6)
        changes = table.watch()
        for row in (1, 2, 1, 2, 1, 2, 5):
            table.scatter(np.array([row]), np.zeros((1, SPEC.dim)))
        twin = copy.deepcopy(table)
        twin.scatter(np.array([0]), np.zeros((1, SPEC.dim)))
        assert len(changes._rows) <= 4
        assert sorted(set(changes.take().tolist())) == [1, 2, 5]


class TestKeptDecayFactors:
    """What time decay has left of rows, kept from moment to moment, beside what is computed anew."""

    @given(st.lists(st.tuples(st.lists(st.integers(0, 19), max_size=3), st.integers(0, 400)), max_size=12))
    @settings(max_examples=40)
    def test_is_the_same_however_it_was_read_before(self, steps: list[tuple[list[int], int]]) -> None:
        policy.warm_up("lists")
        kernels, clock = policy.load("lists"), Clock()
        assert kernels is not None
        table = table_of(20, clock=clock, half_life=5.0)
        for rows, later in steps:
            clock.now += later
            touched = np.array(sorted(set(rows)), dtype=np.int64)
            table.scatter(touched, table.gather(touched))
            at = Moment(clock.now + 3, {SPEC.name: 5.0})
            weights, factor = table.decayed(kernels, 20, at)
            expected = decay_factor(table.view(at).touched[:20], at.now, 5.0)
            np.testing.assert_allclose(weights * factor, expected, rtol=1e-6, atol=1e-30)
            anew, same_factor = DecayFactors(table.watch()).read(kernels, table.arrays(at)[1], 20, at.now, 5.0)
            assert weights.tobytes() == anew.tobytes()
            assert factor == same_factor

    def test_knows_rows_that_came_and_moments_that_are_over(self) -> None:
        policy.warm_up("lists")
        kernels, clock = policy.load("lists"), Clock(100)
        assert kernels is not None
        table = table_of(4, clock=clock, half_life=8.0)
        assert len(table.decayed(kernels, 4)[0]) == 4
        table.grow(300, np.arange(4, 300))
        weights, factor = table.decayed(kernels, 300)
        assert np.allclose(weights * factor, 1.0)
        before = Moment(50, {SPEC.name: 8.0})
        weights, factor = table.decayed(kernels, 300, before)
        assert (weights * factor == 1.0).all()
        assert not len(table.decayed(kernels, 300, Moment(100))[0])
