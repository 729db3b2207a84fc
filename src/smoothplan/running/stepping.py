"""A simulator in a process of its own, for whoever calls it one step at a time: searches, and makers of references."""

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from smoothplan.arguments import Floats, Ints
from smoothplan.models.base import GenerativeModel, Oracle, States
from smoothplan.running.contained import ContainedWorker
from smoothplan.running.processes import default_memory
from smoothplan.running.work import Chunk, Outcome, Work
from smoothplan.streams import Stream, generator_from, generator_words


class Stepped(NamedTuple):
    """The answer of a step, and the generator after it."""

    next_states: States
    rewards: Floats
    terminals: Any
    words: Stream


class _Steps(Work):
    """Work of which a task is one call of the step, with the random numbers of somebody else."""

    def __call__(self, task: Chunk) -> Outcome:
        """Makes the call."""
        states, actions, words = task.arguments
        oracle = Oracle(self.model, self.seed, task.number)
        oracle.rng = generator_from(words)
        answer = Stepped(*oracle.sample(states, actions), generator_words(oracle.rng))
        return Outcome(answer, oracle.calls, 0.0)  # type: ignore[arg-type]

    @property
    def compiled(self) -> bool:
        """Nothing is."""
        return False


class ContainedModel(AbstractContextManager["ContainedModel"]):
    """A model whose step runs in a process of its own, and gives the same bits. Elsewhere it is the model itself.

    Args:
        model: a simulator in Python.
        seed: of the run, for errors to name.
        timeout: see `ContainedWorker`.
        memory: see `ContainedWorker`.
    """

    def __init__(self, model: GenerativeModel, seed: int, timeout: float | None, memory: int | None) -> None:
        self._model = model
        self._worker = ContainedWorker(timeout, default_memory(1) if memory is None else memory)
        self._work = _Steps(None, model, 0, seed)

    def step(self, states: States, actions: Ints, rng: np.random.Generator) -> tuple[Any, ...]:
        """The model's step."""
        task = Chunk(0, "values", (states, actions, generator_words(rng)), len(actions))
        outcomes, error = self._worker.run(self._work.packed, [task])
        if error is not None:
            raise error
        *answer, words = outcomes[0].sums
        rng.bit_generator.state = generator_from(np.asarray(words)).bit_generator.state
        return tuple(answer)

    def __exit__(self, *_: object) -> None:
        self._worker.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._model,)


def _itself(model: GenerativeModel) -> GenerativeModel:
    return model
