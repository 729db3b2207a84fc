"""Walks: which actions they follow, where they end, and room for what they find."""

from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.bounds.gape import OTGapE
from smoothplan.graph import walks
from smoothplan.graph.graph import resized
from smoothplan.run.records import EngineName
from smoothplan.theory.backups import Backup
from tests.common import begun, by_state, tied
from tests.graph.test_sets import MANY, ending, garnet
from tests.saving import equal


@pytest.mark.parametrize(
    "backup", [sp.LogSumExp(0.5), by_state(garnet(0, actions=3))], ids=["log-sum-exp", "transport"]
)
def test_the_soft_walk_follows_the_gradient(backup: Backup) -> None:
    """Frequencies of 20,000 actions, within 5 standard deviations."""
    search = begun(OTGapE(backup, 0.1), garnet(0, actions=3), state=4)
    upper = np.array([0.3, 0.9, 0.5])
    search.graph.q_high[:3] = upper
    draws = [walks.next_action(search.graph, search.rules, search.work, 0, 0) for _ in range(20_000)]
    policy = backup.policy(upper[None], np.array([4]))[0]
    frequencies = np.bincount(draws, minlength=3) / 20_000
    assert (np.abs(frequencies - policy) < 5.0 * np.sqrt(policy * (1.0 - policy) / 20_000)).all()
    rules = begun(OTGapE(backup, 0.1, walk="greedy"), garnet(0, actions=3)).rules
    assert walks.next_action(search.graph, rules, search.work, 0, 0) == 1


@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_short_walks_do_not_eat_up_the_calls(seed: int) -> None:
    """Most walks end at once, at pairs known well; the doubt is where the others lead. A million calls did not do."""
    search = begun(OTGapE(sp.LogSumExp(0.5), 1.0), tied(ending(seed)))
    assert search.explore(1.0, 150_000, MANY)


@pytest.mark.parametrize("engine", ["compiled", "batched"])
@pytest.mark.parametrize("counts", ["pooled", "stage-wise"])
def test_an_episode_has_as_many_steps_as_stages(engine: EngineName, counts: Any) -> None:
    """Also when a run looks at the clock in between, or needs room for more states than there were before."""
    model = tied(garnet(0, states=500, actions=3))
    planner = OTGapE(sp.HardMax(), 0.0, horizon=7, tail="zero", sampling="trajectories", counts=counts)
    search = begun(planner, model, engine=engine)
    room = len(search.graph.keys)
    for calls in range(10, 2000, 11):
        search.explore(0.0, calls, MANY, 10**6)
        assert calls <= search.oracle.calls < calls + 7
        assert search.oracle.calls == 7 * search.graph.totals[0]["rounds"]
    assert search.count > 3 * room
    # The last one is cut short by the limit, and only that one.
    rounds, calls = int(search.graph.totals[0]["rounds"]), search.oracle.calls
    search.explore(0.0, 10**6, MANY, calls + 15)
    assert search.oracle.calls == calls + 15
    assert search.graph.totals[0]["rounds"] == rounds + 3


def test_room_does_not_matter() -> None:
    """To the last bit: a search that grows finds what one with plenty of room finds."""
    model = garnet(0, states=3000, actions=3, kind="deterministic")
    for planner in (OTGapE(sp.LogSumExp(0.2), 0.0), OTGapE(sp.HardMax(), 0.0, horizon=5, sampling="trajectories")):
        growing, roomy = begun(planner, model), begun(planner, model)
        room = len(growing.graph.keys)
        roomy.graph = resized(roomy.graph._asdict(), roomy.rules, 5000, 20_000)
        for search in (growing, roomy):
            search.explore(0.0, 3000, MANY)
        assert growing.count > 5 * room
        found, expected = growing.saved(), roomy.saved()
        assert equal(found, expected)
        assert room < len(growing.graph.keys) < len(roomy.graph.keys)
