import itertools

import numpy as np

from manyhands.core.seeding import ACTION, ENV, INIT, LEARN, TEST, action_stream, env_seed, hash_seed


def test_mix_has_no_collisions_over_a_grid_of_small_inputs() -> None:
    grid = list(itertools.product(range(12), range(5), range(40), range(60)))
    assert len({hash_seed(*words) for words in grid}) == len(grid)


def test_mix_depends_on_the_order_and_on_the_number_of_its_words() -> None:
    words = [w for n in range(1, 5) for w in itertools.product(range(7), repeat=n)]
    assert len({hash_seed(*w) for w in words}) == len(words)


def test_mix_gives_64_bits_that_use_the_whole_range() -> None:
    numbers = np.array([hash_seed(seed, lane) for seed in range(50) for lane in range(50)], np.uint64)
    for bit in range(64):
        share = ((numbers >> np.uint64(bit)) & np.uint64(1)).mean()
        assert 0.45 < share < 0.55, bit


def test_mix_takes_the_largest_seed_of_a_config() -> None:
    assert 0 <= hash_seed(2**63 - 1, ENV, 10**6, 10**9) < 2**64
    assert hash_seed(2**63 - 1) != hash_seed(2**63 - 2)


def test_env_seeds_fit_31_bits_and_rarely_meet() -> None:
    seeds = [
        env_seed(seed, lane, episode)
        for seed in (0, 1, 2**63 - 1)
        for lane in range(64)
        for episode in range(200)
    ]
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert max(seeds) > 2**30
    # 38,400 draws out of 2^31 meet 0.34 times on average (birthday paradox).
    assert len(seeds) - len(set(seeds)) <= 4


def test_purposes_are_different_streams() -> None:
    assert len({ENV, ACTION, TEST, LEARN, INIT}) == 5
    assert len({hash_seed(3, purpose, 1, 2) for purpose in (ENV, ACTION, TEST, LEARN, INIT)}) == 5


def test_action_streams_repeat_by_seed_lane_and_episode_and_differ_otherwise() -> None:
    first = action_stream(5, 3, 2).random(8)
    assert np.array_equal(first, action_stream(5, 3, 2).random(8))
    for other in ((6, 3, 2), (5, 4, 2), (5, 3, 3), (5, 2, 3)):
        assert not np.array_equal(first, action_stream(*other).random(8))
