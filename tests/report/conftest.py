"""One record of each kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.decide.decide import Decision

HOSTILE = '<script>alert("1")</script> & \x00 it\'s'


@pytest.fixture(scope="session")
def records() -> dict[str, Any]:
    model = sp.models.garnet(states=20, actions=2, branching=2, discount=0.2, seed=1)
    cruiser = sp.SmoothCruiser(sp.LogSumExp(1.0), epsilon=0.1)
    chains = sp.ReferenceCruiser(sp.LogSumExp(0.1), order=1, epsilon=0.1)
    river = sp.models.river_swim(discount=0.7)
    return {
        "value": sp.plan(cruiser, model, 0),
        "search": sp.plan(sp.OTGapE(sp.HardMax(), epsilon=0.5), river, 0, max_calls=2_000),
        "tree": sp.plan(sp.UCT(), model, 0, max_calls=100),
        "chains": sp.plan(chains, model, 0, max_calls=2_000),
        "unregularised": sp.plan_unregularised(
            model, 0, bias=0.2, planner=lambda backup: sp.DebiasedCruiser(backup, epsilon=0.3), max_calls=2_000
        ),
        "decision": sp.decide(river, 0, calls=1_000),
        "forecast": sp.forecast(cruiser, model),
        "comparison": sp.compare({"cruiser": cruiser, HOSTILE: sp.UCT()}, model, 0, calls=[300, 600], seeds=2),
        "episodes": sp.ActResult("Lake", (), 0.9, None, 0, 12, 0.1, 0, "completed", ()),
    }


@pytest.fixture
def decision() -> Callable[..., Decision]:
    """A decision without a simulator, hostile by default."""

    def made(**fields: Any) -> Decision:
        usual: dict[str, Any] = {
            "action": 1,
            "q": np.array([1.0, 1.5, -3.0]),
            "q_errors": np.array([0.1, 0.2, np.inf]),
            "q_intervals": None,
            "gap": np.inf,
            "regret": 0.3,
            "certified": False,
            "method": "returns of a reference",
            "warnings": (HOSTILE,),
            "calls": 1_000,
            "seconds": 0.1,
            "status": "max_calls",
            "returns": np.array([50, 60, 1]),
            "differences": np.array([-0.5, 0.0, -4.5]),
            "difference_errors": np.array([0.1, 0.0, np.inf]),
            "epsilon": 0.1,
            "delta": 0.1,
            "seed": 0,
            "names": (HOSTILE, "b", "c"),
        }
        return Decision(**usual | fields)

    return made
