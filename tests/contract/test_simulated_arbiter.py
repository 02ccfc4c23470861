"""The simulator's arbiter decides as the live one: the same defaults, the same algorithms."""

from __future__ import annotations

from dataclasses import replace

from stretto_arbiter.service import Arbiter
from stretto_arbiter.settings import ArbiterSettings
from stretto_core.arbiter import ArbiterMachine
from stretto_core.arbiter.state import ArbiterSettings as Rules
from stretto_messages.values import NOTHING
from stretto_sim.cluster import Settings
from stretto_sim.cluster.stretto import Knobs, Services


def test_the_service_and_the_simulator_read_their_defaults_in_core() -> None:
    """Goal: no default is stated twice. Method: compare what each gives its machine, but for what each has to state."""
    live = Arbiter(ArbiterSettings())
    served = live.machine("_", None)
    simulated = Services([], Settings(nodes=1), Knobs()).arbiter
    assert replace(served.settings, capacity=NOTHING) == Rules(NOTHING)
    assert served.settings.background_algorithm == simulated.settings.background_algorithm == "exact"
    assert live.settings.algorithm == "hull"
    assert served.select is simulated.select is ArbiterMachine().select
