from __future__ import annotations

import numpy as np
import pytest

from tramfl.draws import generator, whole_seed
from tramfl.learning.chance import Purpose


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**70 + 3])
@pytest.mark.parametrize("place", [(), (0,), (3, 1, 4), (2**33, 5)])
def test_draws_are_those_of_numpys_seed_sequence_for_seed_purpose_and_place(
    seed: int, place: tuple[int, ...]
) -> None:
    expected = np.random.SeedSequence((seed, 1, *place))
    drawn = generator(seed, Purpose.POOL, *place).random(5)
    np.testing.assert_array_equal(drawn, np.random.default_rng(expected).random(5))
    assert whole_seed(seed, Purpose.POOL, *place) == int(expected.generate_state(1, np.uint64)[0]) >> 1


def test_another_seed_purpose_or_place_draws_something_else() -> None:
    places = [(0, Purpose.POOL, 1), (1, Purpose.POOL, 1), (0, Purpose.ORDER, 1), (0, Purpose.POOL, 2)]
    assert len({generator(*place).random() for place in places}) == len(places)


def test_a_negative_number_is_no_place() -> None:
    with pytest.raises(ValueError, match="non-negative"):
        generator(0, Purpose.POOL, -1)
