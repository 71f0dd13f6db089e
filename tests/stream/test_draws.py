"""Counter-based draws: pure, independent by purpose, and distributed as they say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from melon.stream.draws import Draws, child_seed, mix

KEYS = st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=20).map(lambda keys: np.array(keys, dtype=np.int64))


def splitmix(word: int) -> int:
    """The finaliser in plain integers."""
    mask = (1 << 64) - 1
    word ^= word >> 30
    word = word * 0xBF58476D1CE4E5B9 & mask
    word ^= word >> 27
    word = word * 0x94D049BB133111EB & mask
    return word ^ (word >> 31)


@given(st.integers(0, 2**64 - 1))
def test_mix_is_splitmix64s_finaliser(word: int) -> None:
    assert int(mix(np.array([word], dtype=np.uint64))[0]) == splitmix(word)


@given(KEYS, st.integers(0, 5), st.integers(1, 8), st.integers(0, 1000))
def test_a_draw_depends_on_its_own_key_and_counter_alone(keys: np.ndarray, seed: int, count: int, start: int) -> None:
    draws = Draws(seed, "test")
    words = draws.words(keys, count, start)
    assert words.shape == (len(keys), count)
    for line, column in np.ndindex(*words.shape):
        assert words[line, column] == draws.words(keys[line : line + 1], 1, start + column)[0, 0]
    assert (Draws(seed, "test").words(keys, count, start) == words).all()


def test_drawing_leaves_no_trace() -> None:
    draws, keys = Draws(0, "a"), np.arange(10)
    first = draws.integers(keys, 5, 1000)
    draws.normals(keys, 5)
    draws.generator().random(7)
    assert (draws.integers(keys, 5, 1000) == first).all()


def test_purposes_and_seeds_are_independent() -> None:
    keys = np.arange(20_000)
    streams = [Draws(seed, purpose).uniforms(keys, 1)[:, 0] for seed in (0, 1) for purpose in ("a", "b", "ab")]
    correlations = np.corrcoef(streams)[np.triu_indices(len(streams), 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(len(keys))
    assert len({child_seed(seed, purpose) for seed in range(50) for purpose in "abcdef"}) == 300


def test_neighbouring_keys_and_counters_are_independent() -> None:
    uniform = Draws(0, "a").uniforms(np.arange(20_000), 3)
    pairs = [(uniform[:-1, 0], uniform[1:, 0]), (uniform[:, 0], uniform[:, 1]), (uniform[:, 0], uniform[:, 2])]
    assert all(abs(np.corrcoef(*pair)[0, 1]) < 4 / np.sqrt(20_000) for pair in pairs)


@pytest.mark.parametrize("below", [2, 3, 10, 37])
def test_integers_are_uniform(below: int) -> None:
    drawn = Draws(1, "chi").integers(np.arange(5_000), 8, below)
    expected = drawn.size / below
    chi_square = ((np.bincount(drawn.reshape(-1), minlength=below) - expected) ** 2 / expected).sum()
    # The mean of chi-square is its degrees of freedom; five deviations is far beyond chance for a fixed seed.
    assert chi_square < (below - 1) + 5 * np.sqrt(2 * (below - 1))


@given(st.lists(st.integers(1, 2**32 - 1), min_size=1, max_size=30), st.integers(1, 6))
def test_integers_stay_below_the_bound_of_their_key(bounds: list[int], count: int) -> None:
    below = np.array(bounds, dtype=np.int64)
    drawn = Draws(0, "bounds").integers(np.arange(len(below)), count, below)
    assert drawn.dtype == np.int64
    assert ((drawn >= 0) & (drawn < below[:, None])).all()
    for line, bound in enumerate(bounds):
        assert (Draws(0, "bounds").integers(np.array([line]), count, bound)[0] == drawn[line]).all()


def test_uniforms_lie_strictly_between_zero_and_one() -> None:
    uniform = Draws(2, "u").uniforms(np.arange(50_000), 4)
    assert uniform.min() > 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 5 / np.sqrt(12 * uniform.size)


@pytest.mark.parametrize("count", [1, 2, 5, 64])
def test_normals_have_the_moments_of_a_normal(count: int) -> None:
    normal = Draws(0, "n").normals(np.arange(200_000 // count), count)
    assert normal.shape == (200_000 // count, count)
    flat, n = normal.reshape(-1), normal.size
    assert abs(flat.mean()) < 5 / np.sqrt(n)
    assert abs(flat.var() - 1) < 5 * np.sqrt(2 / n)
    assert abs((flat**3).mean()) < 5 * np.sqrt(15 / n)
    assert abs((flat**4).mean() - 3) < 5 * np.sqrt(96 / n)
    if count > 1:
        assert np.abs(np.corrcoef(normal.T)[np.triu_indices(count, 1)]).max() < 6 / np.sqrt(len(normal))


def test_generators_are_named_too() -> None:
    one = Draws(0, "shuffle").generator(3).random(4)
    assert (Draws(0, "shuffle").generator(3).random(4) == one).all()
    assert (Draws(0, "shuffle").generator(4).random(4) != one).any()
    assert (Draws(0, "other").generator(3).random(4) != one).any()


def test_draws_stay_what_they_are() -> None:
    """Recorded results and saved models rest on these very numbers."""
    draws = Draws(7, "negatives")
    words = [[1572135039378576063, 13891412590848711795], [14160288158042670916, 17230004107624744887]]
    assert draws.words(np.array([0, 5]), 2).tolist() == words
    assert draws.integers(np.array([3]), 4, 1_000).tolist() == [[58, 392, 559, 193]]
    assert np.allclose(draws.normals(np.array([2]), 2), [[-0.6999493658947302, 0.09186913514864772]], rtol=1e-12)
