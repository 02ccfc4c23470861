import numpy as np
from stretto.engine import Own, owners
from stretto_core.actuator import placement
from stretto_core.actuator.placement import owner_of


def test_of_two_claimants_the_new_owner_serves_as_the_actuator_plans():
    frozen, mine = np.array([2, 1, 0, 0]), np.array([1, 0, 2, 0])
    assert owners({5: frozen, 7: mine}, 4).tolist() == [7, 5, 7, -1]
    assert owner_of({5: frozen[:3].tolist(), 7: mine[:3].tolist()}) == [7, 5, 7]
    assert (Own.NOT_MINE, Own.MINE, Own.FROZEN) == (placement.NOT_MINE, placement.MINE, placement.FROZEN)
