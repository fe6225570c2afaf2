from __future__ import annotations

import numpy as np

from fedfloor.base.chance import generator, key


def test_a_generator_is_philox_under_its_key() -> None:
    for place in ((), (0,), (3, 1, 2)):
        ours = generator(7, "batches", *place)
        numpys = np.random.Generator(np.random.Philox(key=key(7, "batches", *place)))
        assert str(ours.bit_generator.state) == str(numpys.bit_generator.state)
        np.testing.assert_array_equal(ours.permutation(50), numpys.permutation(50))
