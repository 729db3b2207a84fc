"""A simulator call that went wrong is written down, and can be made again."""

import json
import pickle
from typing import Any

import numpy as np
import pytest

import smoothplan as sp


def slippery(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    """Fails by a draw, and only where the state is large."""
    luck = rng.random()
    if luck > 0.99 and state[0] > 0.5:
        raise ZeroDivisionError("no luck")
    return state, 1.5 if luck > 0.95 and state[0] > 0.5 else 0.5, False


def test_a_call_that_went_wrong_can_be_made_again() -> None:
    """The draws before it are left out, and it fails in the same way, also from JSON and from a copy."""
    model = sp.VectorModel.from_scalar(slippery, actions=2, discount=0.9, reward_range=(0, 1))
    states = np.where(np.arange(300) % 3 == 0, 1.0, 0.0)[:, None]
    kinds = set()
    for seed in range(20):
        with pytest.raises(sp.SimulatorError) as caught:
            sp.Oracle(model, seed, 7).sample(states, np.arange(300) % 2)
        error = caught.value
        call = error.call
        assert call.states.tolist() == [[1.0]]
        assert (call.seed, call.chunk) == (seed, 7)
        assert f"state [1.0], action {call.actions[0]}" in str(error)
        for again in (call, call.to_json(), pickle.loads(pickle.dumps(error)).call):
            with pytest.raises(sp.SimulatorError) as repeated:
                sp.reproduce(model, again)
            assert str(repeated.value) == str(error)
        kinds.add(type(error.__cause__))
    assert kinds == {ZeroDivisionError, type(None)}


SOUND = {"states": [[1.0]], "dtype": "<f8", "actions": [0], "generator": [1, 2, 3, 4, 0, 0]}


@pytest.mark.parametrize(
    "wrong", [{"dtype": "O"}, {"actions": [0, 1]}, {"generator": [1, 2, 3, 4, 2, 0]}, {"row": 9}, {"chunk": "0"}]
)
def test_what_is_no_call_is_refused(wrong: dict[str, Any]) -> None:
    entries = SOUND | {"seed": 0, "chunk": 0, "row": 0}
    assert sp.models.Call.from_json(json.dumps(entries)).row == 0
    for text in (json.dumps(entries | wrong), "", "[]", "[" * 100_000, "{}"):
        with pytest.raises(ValueError, match="call must be one that an error of a simulator has written down"):
            sp.models.Call.from_json(text)
