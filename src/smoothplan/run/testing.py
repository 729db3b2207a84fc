"""Checks of a simulator, with a display of their progress."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from smoothplan.base.arguments import Ints
from smoothplan.models import testing
from smoothplan.models.calls import watcher
from smoothplan.models.model import GenerativeModel
from smoothplan.models.testing import ModelReport
from smoothplan.run.progress import Display, Shown
from smoothplan.run.session import session


def check_model(
    model: GenerativeModel,
    states: ArrayLike | None = None,
    *,
    seed: int = 0,
    rounds: int = 50,
    progress: Shown = False,
) -> ModelReport:
    """Calls a simulator in ways that reveal broken promises, and raises `ModelError` at the first one.

    It checks shapes, dtypes, reward range and kind, non-finite numbers, terminal states and the bound on successors;
    that states are not changed in place; that the same generator gives the same result; and that no call depends on an
    earlier one. A `value_range` is refuted where random actions earn significantly more; of a table, `exact.solve`
    with `HardMax` checks it exactly.

    Args:
        model: the simulator.
        states: states to start from, [n, ...]; the model's initial state by default.
        seed: seed of the random walk that looks for more states.
        rounds: steps of that walk.
        progress: True to show the calls made on standard error, "json" for JSON lines.

    Returns:
        What was seen. A pass is evidence, not proof.
    """
    most = testing.most_checked(model, rounds)
    with session(title="checking", progress=progress, max_calls=most, signals=False) as opened:
        before = watcher.set(_Counter(opened.display))
        try:
            report = testing.check_model(model, states, seed=seed, rounds=rounds)
        finally:
            watcher.reset(before)
        opened.display.update(report.calls)
        opened.display.end("completed")
    return report


class _Counter:
    """Is told of every simulator call, and shows how many there were."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._before = self._batch = 0

    def __call__(self, states: NDArray[Any], actions: Ints, rng: np.random.Generator) -> None:
        """A batch is about to be stepped."""
        self._before, self._batch = self._before + self._batch, len(actions)
        self._display.update(self._before)

    def row(self, row: int) -> None:
        """A row of that batch is about to be stepped: a slow simulator may take long for a batch."""
        self._display.update(self._before + row)
