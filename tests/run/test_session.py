"""Plans with checkpoints, and with simulators that misbehave: what a user sees."""

import functools
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smoothplan as sp
from smoothplan.cli import main
from smoothplan.run.checkpoint import CheckpointError
from tests.common import content

SMOOTH = sp.LogSumExp(0.5)
PLANNER = sp.SmoothCruiser(SMOOTH, epsilon=0.1)


DECLARED: dict[str, Any] = {"actions": 2, "discount": 0.3, "reward_range": (0, 1), "terminates": False}


def walk(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    place = np.clip(state[0] + (0.3 if action else -0.3) + 0.1 * rng.standard_normal(), -1.0, 1.0)
    return np.array([place]), 0.5 * (1.0 + place), False


def model(step: Callable[..., Any] = walk, **changes: Any) -> sp.VectorModel:
    return sp.VectorModel.from_scalar(step, **DECLARED | {"initial_state": [0.2]} | changes)


def slower(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    place, reward, end = walk(state, action, rng)
    return place, 0.99 * reward, end


def rarely_slower(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
    place, reward, end = walk(state, action, rng)
    return place, reward * (0.99 if int(1e6 * abs(place[0])) % 6 == 0 else 1.0), end


def misbehaving(how: Callable[[], Any], after: float = 0.999) -> sp.VectorModel:
    """Behaves until a rare draw: one in a thousand calls."""

    def step(state: Any, action: int, rng: np.random.Generator) -> tuple[Any, float, bool]:
        if rng.random() > after:
            answer = how()
            if answer is not None:
                return state, answer, False
        return walk(state, action, rng)

    return model(step)


def raises() -> None:
    raise ZeroDivisionError("no luck")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (raises, "the simulator raised ZeroDivisionError: no luck"),
        (sys.exit, "the simulator raised SystemExit"),
        (functools.partial(float, "nan"), "reward nan is outside the declared range"),
        (functools.partial(float, 1.5), "reward 1.5 is outside the declared"),
    ],
)
def test_a_misbehaving_simulator_is_named(how: Callable[[], Any], message: str) -> None:
    """The error names the call, and what was done before is there; in a process it is the same."""
    found = []
    for workers in (1, 2)[: 2 if how is raises else 1]:
        with pytest.raises(sp.SimulatorError, match=message) as caught:
            sp.plan(PLANNER, misbehaving(how), seed=3, workers=workers)
        error = caught.value
        assert re.search(r"\(state \[-?\d\.\d+\], action [01].*, seed 3, chunk \d+\)", str(error))
        low, high = error.partial.interval
        assert low <= error.partial.value <= high
        assert error.call.seed == 3
        with pytest.raises(sp.SimulatorError, match=message) as repeated:
            sp.reproduce(misbehaving(how), error.call)
        assert str(repeated.value) == str(error)
        found.append((str(error), error.partial.calls, error.partial.interval))
    assert len(set(found)) == 1


def test_what_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    def locked(state: Any, action: int, rng: np.random.Generator) -> Any:
        with lock:
            return walk(state, action, rng)

    with pytest.raises(TypeError, match=r"cannot be sent to other processes.*lock"):
        sp.plan(PLANNER, model(locked), workers=2)
    assert sp.plan(PLANNER, model(locked)).status == "converged"


@pytest.mark.parametrize("kind", ["search", "reference"])
def test_calls_in_this_process_are_limited_too(kind: str) -> None:
    """Searches, and makers of references, call the simulator in the process that asks: each call has the limit."""

    def jump(state: Any, action: int, rng: np.random.Generator, hang: bool = False) -> Any:
        luck = rng.random()
        if hang and luck > 0.99:
            time.sleep(1000)
        return (state + 1 + action) % 5, float(luck < 0.2 * state), False

    declared = {"initial_state": 0, "reward_kind": "bernoulli", "max_successors": 1}
    walks = sp.OTGapE(SMOOTH, epsilon=0.3, sampling="trajectories")  # rounds would send chunks to other processes
    planner = walks if kind == "search" else sp.ReferenceCruiser(SMOOTH, epsilon=0.3)
    limits: dict[str, Any] = {"seed": 3, "max_calls": 1_000}
    if kind == "search":
        here, limited = (sp.plan(planner, model(jump, **declared), **limits, chunk_seconds=s) for s in (None, 60.0))
        assert content(here) == content(limited)
    message = r"a call took longer than chunk_seconds=0.2 s \(state \d, action \d, seed 3"
    with pytest.raises(sp.SimulatorError, match=message) as caught:
        sp.plan(planner, model(functools.partial(jump, hang=True), **declared), **limits, chunk_seconds=0.2)
    assert caught.value.call.states.shape == (1,)


class Counting:
    """A simulator that counts its calls, and fails now and then until it is repaired."""

    def __init__(self, broken: bool = False) -> None:
        self.calls, self.broken = 0, broken
        self.failed = 0  # the call that was the first to fail; others follow, which look for the row

    def __call__(self, state: Any, action: int, rng: np.random.Generator) -> Any:
        self.calls += 1
        if rng.random() > 0.999 and self.broken:
            self.failed = self.failed or self.calls
            raise ZeroDivisionError
        return walk(state, action, rng)


def test_a_checkpoint_is_found_done(tmp_path: Path) -> None:
    """The second run computes one chunk of each kind again; one whose file is damaged says so."""
    file, counting = tmp_path / "run.ckpt", Counting()

    def again() -> sp.PlanResult:
        counting.calls = 0
        return sp.plan(PLANNER, model(counting), seed=3, checkpoint=file)

    first = again()
    assert first.calls <= counting.calls < first.calls + 10  # a few show that the simulator is the same
    assert content(again()) == content(first)
    assert 0 < counting.calls < 0.05 * first.calls
    counting.calls = 0
    file.write_bytes(file.read_bytes()[:-5000])
    with pytest.raises(CheckpointError, match=r"run\.ckpt is damaged"):
        again()
    assert counting.calls == 0


def test_a_search_is_found_done(tmp_path: Path) -> None:
    """A few calls show that the simulator is the same; no other is made again."""
    counting, calls, found = Counting(), [], []
    for _ in range(2):
        result = sp.plan(sp.OTGapE(SMOOTH, 0.3), model(counting), max_calls=300, checkpoint=tmp_path / "run.ckpt")
        calls.append(counting.calls)
        found.append(content(result))
    assert found[0] == found[1]
    assert calls[1] - calls[0] < 10 < 300 <= calls[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "is of another seed: there 3, here 4"),
        ({"state": [0.3]}, "is of another state"),
        ({"max_calls": 10**6}, "is of another max_calls: there None, here 1000000"),
        ({"model": model(discount=0.31)}, "is of another model"),
        ({"model": model(slower)}, "is of another simulator: a call that is made again has another outcome"),
        ({"model": model(rarely_slower)}, r"is of another simulator: chunk \d+ that is made again has another outcome"),
        ({"planner": sp.SmoothCruiser(SMOOTH, epsilon=0.11)}, "is of another planner"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"planner": PLANNER, "model": model(), "seed": 3, "checkpoint": tmp_path / "run.ckpt"}
    before = sp.plan(**arguments)
    with pytest.raises(CheckpointError, match=message):
        sp.plan(**arguments | changes)
    again = sp.plan(**arguments, max_seconds=60, engine="auto")
    assert (again.value, again.interval, again.calls) == (before.value, before.interval, before.calls)


def test_a_checkpoint_is_kept_when_a_simulator_fails(tmp_path: Path) -> None:
    """What was done before the failure is not done again once the simulator is mended."""
    counting = Counting(broken=True)

    def again() -> sp.PlanResult:
        counting.calls = 0
        return sp.plan(PLANNER, model(counting), seed=3, checkpoint=tmp_path / "run.ckpt")

    with pytest.raises(sp.SimulatorError) as caught:
        again()
    tried, made = counting.failed, caught.value.partial.calls
    counting.broken = False
    result = again()
    # Only the chunk that failed is computed again, and the first of each kind.
    assert 0.8 * made < result.calls - counting.calls <= tried < made + 10


def test_a_search_that_ended_before_its_first_call_is_resumed(tmp_path: Path) -> None:
    """The file is written before the first call, when there is no history yet."""

    class Jump(Counting):
        def __call__(self, state: Any, action: int, rng: np.random.Generator) -> Any:
            self.calls += 1
            if self.broken and self.calls > 4:  # the first four compare simulators
                raise ZeroDivisionError
            return (state + 1 + action) % 5, float(rng.random() < 0.2 * state), False

    jump, planner = Jump(broken=True), sp.OTGapE(SMOOTH, epsilon=0.3)
    simulator = model(jump, initial_state=0, reward_kind="bernoulli", max_successors=1)
    with pytest.raises(sp.SimulatorError) as caught:
        sp.plan(planner, simulator, checkpoint=tmp_path / "run.ckpt")
    assert caught.value.partial.details.rounds == 0
    assert b"snapshot search" in (tmp_path / "run.ckpt").read_bytes()
    jump.broken = False
    resumed = sp.plan(planner, simulator, checkpoint=tmp_path / "run.ckpt")
    assert content(resumed) == content(sp.plan(planner, simulator))


def test_progress_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--model", "garnet:discount=0.2,seed=1", "--planner", "second-order:epsilon=0.05", "--json"]
    where = ["--checkpoint", str(tmp_path / "run.ckpt"), "--progress", "json"]
    assert main(["plan", *small, *where]) == 0
    output = capsys.readouterr()
    result, lines = json.loads(output.out), [json.loads(line) for line in output.err.splitlines()]
    assert lines[-1]["status"] == result["status"] == "converged"
    assert (lines[-1]["calls"], lines[-1]["interval"]) == (result["calls"], result["interval"])
    assert main(["plan", *small, *where]) == 0
    first = json.loads(capsys.readouterr().err.splitlines()[0])
    assert first["note"].startswith(f"resumed from {tmp_path / 'run.ckpt'}")
    assert main(["plan", *small, *where, "--seed", "1"]) == 2
    assert "is of another seed: there 0, here 1" in capsys.readouterr().err
