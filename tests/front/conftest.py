"""A file of a user's, which makes models."""

import sys
from pathlib import Path

import pytest

OWN = """
import numpy as np
import smoothplan as sp
from beside import LOW  # a module in the same folder


def make_model(discount=0.2, limit=10.0):
    def walk(state, action, rng):
        if state[0] > limit:
            raise RuntimeError("too far")
        place = float(np.clip(state[0] + 0.3 * (2 * action - 1) + 0.1 * rng.standard_normal(), LOW, 1))
        return np.array([place]), 0.5 * (place - 1)

    declared = dict(reward_range=(LOW, 0), terminates=False, initial_state=[0.2])
    return sp.VectorModel.from_scalar(walk, actions=2, discount=discount, **declared)


class Table:
    def __new__(cls, states):
        return sp.models.chain(states=states)


table = sp.models.chain(states=3)
nothing = lambda: None
number = 7
wrong = lambda: 1 / 0
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of the file, in the working directory, with a module beside it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_file", raising=False)
    (tmp_path / "beside.py").write_text("LOW = -1\n")
    (tmp_path / "my_file.py").write_text(OWN)
    return str(tmp_path / "my_file.py")
