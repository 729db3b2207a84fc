"""The golden file: the bits of what every planner finds, from before a change that must not change them.

    python -m tests.golden make                      # writes tests/golden.json
    python -m tests.golden check                     # computes everything again, and prints each difference
    python -m tests.golden check --only "plan/uct"   # only the cases whose name contains this

Only the public namespace is used here, so modules may be moved and renamed. A file is good for one kind of processor
and one set of versions of the libraries, which it names.
"""

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import smoothplan as sp

FILE = Path(__file__).with_suffix(".json")

SEEDS = (0, 1)

SOFT, HARD = sp.LogSumExp(1.0), sp.HardMax()

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

Found = dict[str, Any]
"""What a case finds: words, whole numbers, and floats as texts of `float.hex`, in lists and dictionaries."""

Case = Callable[[], Found]

PlannerMaker = Callable[[int], Any]
"""From the number of actions to a planner."""


def bits(thing: Any) -> Any:
    """The same for JSON, where floats are texts that say every bit."""
    if isinstance(thing, np.ndarray | np.generic):
        thing = thing.tolist()
    if isinstance(thing, float):
        return thing.hex()
    if isinstance(thing, dict):
        return {str(name): bits(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [bits(value) for value in thing]
    if thing is None or isinstance(thing, bool | int | str):
        return thing
    raise TypeError(f"a case must find words and numbers, got {thing!r}")


def fields(thing: Any, *names: str) -> Found:
    """Some attributes of a thing."""
    found: Found = bits({name: getattr(thing, name) for name in names})
    return found


def of_plan(result: sp.PlanResult) -> Found:
    """What a plan found; not how long it took."""
    return fields(result, "value", "interval", "action", "calls", "q", "q_intervals", "status")


# Models


class Simulator:
    """A table as a simulator in Python, which counts its calls and may end the run after many.

    What it counts is no part of its state, so a checkpoint takes one that dies for the same as one that does not.
    """

    def __init__(self, table: sp.TabularModel, plane: bool = False) -> None:
        self.bounds = np.cumsum(table.probabilities, axis=-1)[..., :-1]
        self.successors, self.ends = table.successors, table.ends
        self.rewards = np.broadcast_to(table.rewards.reshape(*table.rewards.shape[:2], -1), table.successors.shape)
        self.coins = table.reward_kind == "bernoulli"
        self.plane = plane  # whether states are pairs of floats
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        own = ("calls", "after", "pause_after", "ending")
        return {name: value for name, value in vars(self).items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.calls, self.after, self.pause_after = 0, math.inf, math.inf
        self.ending: signal.Signals | None = None  # a signal that is sent after so many calls; else an interrupt

    def __call__(self, states: Any, actions: Ints, rng: np.random.Generator) -> tuple[Any, Floats, NDArray[np.bool_]]:
        if self.calls >= self.after:
            if self.ending is not None:
                os.kill(os.getpid(), self.ending)
            raise KeyboardInterrupt
        if self.calls >= self.pause_after:
            self.pause_after = math.inf
            time.sleep(1.1)
        self.calls += len(actions)
        here = states[:, 0].astype(np.int64) if self.plane else states
        drawn = (self.bounds[here, actions] < rng.random(len(actions))[:, None]).sum(axis=1)
        next_states, rewards = self.successors[here, actions, drawn], self.rewards[here, actions, drawn]
        if self.coins:
            rewards = (rng.random(len(actions)) < rewards).astype(np.float64)
        ends = self.ends[here, actions, drawn]
        return (np.stack([next_states, next_states % 2.0], axis=1) if self.plane else next_states), rewards, ends


def ending() -> sp.TabularModel:
    """Rewards of either sign that depend on the next state, and every fourth state terminal."""
    rng = np.random.default_rng(1)
    shape = (12, 2, 3)
    return sp.TabularModel(
        rng.dirichlet(np.ones(3), size=shape[:2]),
        rng.integers(12, size=shape),
        rng.uniform(-1.0, 2.0, size=shape),
        discount=0.3,
        reward_kind="bounded",
        reward_range=(-1.0, 2.0),
        terminal=np.arange(12) % 4 == 3,
    )


def tied() -> sp.TabularModel:
    """The easy table, where both actions at the state 0 are alike."""
    easy = TABLES["easy"]()
    parts = [part.copy() for part in (easy.probabilities, easy.successors, easy.rewards)]
    for part in parts:
        part[0, 1] = part[0, 0]
    return sp.TabularModel(*parts, discount=easy.discount, reward_kind="bernoulli", initial_state=0)


def hill(states: Any, actions: Any, rng: Any) -> Any:
    """Steps on a line; it pays to be at its centre."""
    next_states = np.empty_like(states)
    rewards = np.empty(len(actions))
    for i in range(len(actions)):
        place = states[i, 0] + 0.3 * (actions[i] - 1) + 0.2 * (rng.random() - 0.5)
        next_states[i, 0] = min(max(place, -2.0), 2.0)
        rewards[i] = math.exp(-states[i, 0] * states[i, 0])
    return next_states, rewards, np.zeros(len(actions), dtype=np.bool_)


def plane(states: Any, actions: Any, rng: np.random.Generator) -> Any:
    """Steps in the plane; it pays to be at its centre."""
    moved = states + 0.3 * (actions - 1)[:, None] + 0.1 * rng.standard_normal(states.shape)
    return np.clip(moved, -2.0, 2.0), np.exp(-(states**2).sum(axis=1))


def queues(states: Any, actions: Any, rng: np.random.Generator) -> Any:
    """Three queues, of which one is served faster."""
    arrivals, served = rng.integers(0, 3, states.shape), 1 + 3 * (np.arange(3) == actions[:, None])
    return np.clip(states + arrivals - served, 0, 99), -states.sum(axis=1).astype(np.float64)


def on_hill(discount: float) -> sp.JitModel:
    """A jitted model with noise."""
    return sp.JitModel(
        step=hill, actions=3, discount=discount, reward_range=(0, 1), terminates=False, initial_state=[1.0]
    )


TABLES: dict[str, Callable[[], sp.TabularModel]] = {
    "coins": lambda: sp.models.garnet(12, 2, 2, discount=0.3, seed=1, reward_kind="bernoulli"),
    "easy": lambda: sp.models.garnet(12, 2, 2, discount=0.1, seed=1, reward_kind="bernoulli"),
    "tied": tied,
    "ending": ending,
    "long": lambda: sp.models.garnet(20, 3, 3, discount=0.9, seed=2),
}


@cache
def table(name: str) -> sp.TabularModel:
    """One of the tables."""
    return TABLES[name]()


def simulated(name: str, plane: bool = False) -> tuple[sp.VectorModel, Simulator]:
    """A table of which only a simulator in Python is known, and that simulator."""
    known, simulator = table(name), Simulator(table(name), plane)
    model = sp.VectorModel(
        simulator,
        actions=known.actions,
        discount=known.discount,
        reward_range=known.reward_range,
        reward_kind=known.reward_kind,
        max_successors=known.max_successors,
        terminates=known.terminates,
        initial_state=np.zeros(2) if plane else 0,
    )
    return model, simulator


@cache
def model_of(kind: str) -> Any:
    """A model by its kind and name."""
    match kind.split():
        case ["table", name]:
            return table(name)
        case ["python", name]:
            return simulated(name)[0]
        case ["plane", name]:
            return simulated(name, plane=True)[0]
    return JITTED[kind]()


JITTED: dict[str, Callable[[], sp.JitModel]] = {
    "short hill": lambda: on_hill(0.3),
    "hill": lambda: on_hill(0.9),
    "mountain car": lambda: sp.models.mountain_car(discount=0.9),
    "cart pole": lambda: sp.models.cart_pole(discount=0.95),
}

# Planners


def transport(actions: int, by_state: int | None = None, tau: float = 1.0) -> sp.OptimalTransport:
    """Optimal transport between actions in a row; to a reference of each of so many states, where a number is given."""
    cost = np.abs(np.subtract.outer(np.arange(actions), np.arange(actions))) / max(actions - 1, 1)
    size = None if by_state is None else (by_state,)
    reference = np.random.default_rng(0).dirichlet(np.ones(actions), size=size)
    return sp.OptimalTransport(cost=cost, tau=tau, lam=0.3, reference=reference)


def around(actions: int, states: int = 20, backup: Any = SOFT, **options: Any) -> sp.ReferenceCruiser:
    """A planner around a poor table."""
    poor = np.random.default_rng(0).normal(size=(states, actions))
    return sp.ReferenceCruiser(backup, sp.TabularReference(poor), **options)


RECURSIVE: dict[str, PlannerMaker] = {
    "sparse": lambda _: sp.SparseSampling(HARD, epsilon=0.05),
    "smooth": lambda _: sp.SmoothCruiser(SOFT, epsilon=0.05),
    "smooth, coarse": lambda _: sp.SmoothCruiser(SOFT, epsilon=0.4),
    "smooth, transport": lambda actions: sp.SmoothCruiser(transport(actions), epsilon=0.05),
    "second": lambda _: sp.SecondOrderSmoothCruiser(SOFT, epsilon=0.05),
    "second, transport": lambda actions: sp.SecondOrderSmoothCruiser(transport(actions), epsilon=0.05),
    "debiased": lambda _: sp.DebiasedCruiser(SOFT, epsilon=0.05),
    "debiased, coarse": lambda _: sp.DebiasedCruiser(SOFT, epsilon=0.3),
    "debiased, transport": lambda actions: sp.DebiasedCruiser(transport(actions), epsilon=0.05),
}

PUBLISHED: dict[str, PlannerMaker] = {
    "sparse, paper": lambda _: sp.SparseSampling(HARD, epsilon=0.5, variant="paper"),
    "smooth, paper": lambda _: sp.SmoothCruiser(SOFT, epsilon=1.5, variant="paper"),
    "second, paper": lambda _: sp.SecondOrderSmoothCruiser(SOFT, epsilon=0.5, variant="paper"),
}
"""With constants as published, which need rewards of 0 and 1 and no ends."""

FINE: dict[str, PlannerMaker] = {
    "smooth, fine": lambda _: sp.SmoothCruiser(sp.LogSumExp(2.0), epsilon=0.003),
    "second, fine": lambda _: sp.SecondOrderSmoothCruiser(sp.LogSumExp(2.0), epsilon=0.003),
    "second, transport, fine": lambda actions: sp.SecondOrderSmoothCruiser(transport(actions, tau=6.0), epsilon=0.003),
    "debiased, fine": lambda _: sp.DebiasedCruiser(SOFT, epsilon=0.003),
    "debiased, transport, fine": lambda actions: sp.DebiasedCruiser(transport(actions, tau=6.0), epsilon=0.003),
}
"""So accurate that they differ: with levels of the second order, and levels that cancel terms of their bias."""

GAPS: dict[str, PlannerMaker] = {
    "gap cruiser, fine": lambda _: sp.OTGapCruiser(sp.LogSumExp(2.0), epsilon=0.01),
    "gap cruiser, fine, biased": lambda _: sp.OTGapCruiser(sp.LogSumExp(2.0), epsilon=0.005, debias=0),
}

SEARCHES: dict[str, PlannerMaker] = {
    "gape, hard": lambda _: sp.OTGapE(HARD, epsilon=0.05),
    "gape, soft": lambda _: sp.OTGapE(SOFT, epsilon=0.05),
    "gape, soft, coarse": lambda _: sp.OTGapE(SOFT, epsilon=0.5),
    "gape, transport": lambda actions: sp.OTGapE(transport(actions), epsilon=0.05),
    "gape, Tsallis": lambda _: sp.OTGapE(sp.Tsallis(1.0), epsilon=0.05),
    "gape, trajectories": lambda _: sp.OTGapE(SOFT, epsilon=0.05, sampling="trajectories"),
    "gape, stage-wise": lambda _: sp.OTGapE(SOFT, epsilon=0.05, horizon=4, counts="stage-wise"),
    "mdp-gape": lambda _: sp.MDPGapE(epsilon=0.05, sampling="trajectories"),
    "gap cruiser": lambda _: sp.OTGapCruiser(SOFT, epsilon=0.05),
    "gap cruiser, first": lambda _: sp.OTGapCruiser(SOFT, epsilon=0.05, order=1),
    "uct": lambda _: sp.UCT(depth=6),
    "uct, open": lambda _: sp.UCT(depth=6, loop="open", recommendation="visits"),
}

CHAINS: dict[str, PlannerMaker] = {
    "around, first": partial(around, order=1, epsilon=0.05),
    "around, second": partial(around, order=2, epsilon=0.05),
    "around, second, coarse": partial(around, order=2, epsilon=1.0),
    "around, transport": lambda actions: around(actions, backup=transport(actions), epsilon=0.05),
    "around, error range": partial(around, order=2, epsilon=0.5, error_range=8.0),
    "made, first": lambda _: sp.ReferenceCruiser(SOFT, order=1, epsilon=0.05),
    "made, second": lambda _: sp.ReferenceCruiser(SOFT, order=2, epsilon=0.05),
}

PLANNERS = RECURSIVE | PUBLISHED | FINE | GAPS | SEARCHES | CHAINS


@cache
def on_grid(kind: str, order: int) -> sp.ReferenceCruiser:
    """A planner around values on a grid."""
    model, backup = model_of(kind), sp.LogSumExp(0.1)
    reference = sp.GridReference.build(model, backup, cells=6, seed=3)
    return sp.ReferenceCruiser(backup, reference, order=order, epsilon=0.2)


# Cases


def planned(
    planner: str, kind: str, *, seed: int, max_calls: int | None, engine: Any = "auto", workers: int = 1
) -> Found:
    """A plan by one of the planners on one of the models."""
    model = model_of(kind)
    made = PLANNERS[planner](model.actions)
    return of_plan(sp.plan(made, model, seed=seed, max_calls=max_calls, engine=engine, workers=workers))


def plans() -> Iterator[tuple[str, Case]]:
    """Every planner on tables, and on simulators in Python of the same."""
    short = ("coins", "ending")
    groups: list[tuple[dict[str, PlannerMaker], tuple[str, ...], int | None]] = [
        (RECURSIVE, short, 4_000),
        (PUBLISHED, ("coins",), 4_000),
        (FINE, ("easy",), None),
        (GAPS, ("tied",), None),
        (SEARCHES, ("coins", "ending", "long"), 3_000),
        (CHAINS, ("ending", "long"), 6_000),
    ]
    for makers, names, calls in groups:
        for planner in makers:
            for name in names:
                for kind, engine in product(("table", "python"), ("auto", "batched")):
                    if calls is None and (kind, engine) == ("python", "batched"):
                        continue  # which is "auto", and takes a while
                    for seed in SEEDS:
                        for workers in (1, 2) if (kind, engine) == ("table", "auto") else (1,):
                            yield (
                                f"plan/{planner}/{kind} {name}/{engine}/seed {seed}/workers {workers}",
                                partial(
                                    planned,
                                    planner,
                                    f"{kind} {name}",
                                    seed=seed,
                                    max_calls=calls,
                                    engine=engine,
                                    workers=workers,
                                ),
                            )
    for planner in ("sparse", "smooth, coarse", "debiased, coarse", "gape, soft, coarse", "around, second, coarse"):
        for kind in ("table coins", "python coins"):
            yield f"plan/{planner}/{kind}/no limit", partial(planned, planner, kind, seed=0, max_calls=None)
    for planner in ("debiased", "gape, hard", "around, second"):  # processes start slowly
        case = partial(planned, planner, "python ending", seed=0, max_calls=4_000, workers=2)
        yield f"plan/{planner}/python ending/auto/seed 0/workers 2", case


def by_state(engine: Any, kind: Callable[..., Any]) -> Found:
    """A plan with a backup that depends on the state."""
    backup = transport(2, by_state=12)
    return of_plan(sp.plan(kind(backup, epsilon=0.05), table("ending"), 0, max_calls=3_000, engine=engine))


def gridded(kind: str, order: int, seed: int, engine: Any, workers: int) -> Found:
    """A plan around values on a grid."""
    options: dict[str, Any] = {"seed": seed, "engine": engine, "workers": workers, "max_calls": 20_000}
    return of_plan(sp.plan(on_grid(kind, order), model_of(kind), **options))


def jitted() -> Iterator[tuple[str, Case]]:
    """Planners on jitted models."""
    for seed in SEEDS:
        for engine, workers in (("auto", 1), ("auto", 2), ("batched", 1)):
            after = f"{engine}/seed {seed}/workers {workers}"
            for kind in ("hill", "mountain car"):
                for order in (1, 2):
                    case = partial(gridded, kind, order, seed, engine, workers)
                    yield f"plan/grid, order {order}/{kind}/{after}", case
            for planner, kind in (
                ("smooth", "short hill"),
                ("debiased", "short hill"),
                ("gap cruiser", "short hill"),
                ("gape, soft", "short hill"),
                ("uct", "cart pole"),
                ("made, first", "cart pole"),
                ("made, second", "hill"),
            ):
                if kind == "short hill" and workers == 2 and (planner, seed) != ("debiased", 0):
                    continue  # these do without compiled engines, and processes start slowly
                options: dict[str, Any] = {"seed": seed, "max_calls": 6_000, "engine": engine, "workers": workers}
                yield f"plan/{planner}/{kind}/{after}", partial(planned, planner, kind, **options)
    for engine in ("auto", "batched"):
        kinds: dict[str, Callable[..., Any]] = {
            "debiased": sp.DebiasedCruiser,
            "gape": sp.OTGapE,
            "made": sp.ReferenceCruiser,
        }
        for name, maker in kinds.items():
            yield f"plan/{name}, transport by state/table ending/{engine}", partial(by_state, engine, maker)


# Interrupted, killed, resumed

RESUMED: dict[str, tuple[str, int]] = {
    "smooth": ("coins", 20_000),
    "second, transport": ("ending", 20_000),
    "debiased": ("ending", 20_000),
    "gape, hard": ("long", 10_000),
    "gape, Tsallis": ("ending", 10_000),
    "mdp-gape": ("ending", 2_000),
    "uct": ("long", 3_000),
    "gap cruiser": ("ending", 20_000),
    "around, second": ("long", 20_000),
    "made, first": ("ending", 20_000),
}
"""Planners with the tables and the limits on calls that they are stopped and resumed with."""

KEPT_BY_TIME = ("gape, hard", "gape, Tsallis", "mdp-gape", "uct")
"""Searches, which are written to a checkpoint once a second: the simulator pauses for as long before it ends them."""

KILLED = ("smooth", "gape, hard", "gap cruiser", "around, second")

COMPILED: dict[str, tuple[str, int]] = {"debiased": ("ending", 30_000_000), "around, second": ("long", 30_000_000)}
"""Planners that are killed while they run compiled code on a table."""


def in_python(planner: str, checkpoint: Path | None = None, **ends: Any) -> tuple[sp.PlanResult, int]:
    """A run of a simulator in Python, and the calls of the simulator that it took."""
    name, calls = RESUMED[planner]
    model, simulator = simulated(name)
    vars(simulator).update(ends)
    made = PLANNERS[planner](model.actions)
    return sp.plan(made, model, seed=5, max_calls=calls, checkpoint=checkpoint), simulator.calls


def stopped(planner: str, checkpoint: Path, after: int, ending: signal.Signals | None) -> sp.PlanResult:
    """A run of a simulator in Python that ends itself after so many calls."""
    pause_after = after // 2 if planner in KEPT_BY_TIME else math.inf
    return in_python(planner, checkpoint, after=after, pause_after=pause_after, ending=ending)[0]


def resumed(planner: str, kill: bool) -> Found:
    """A run that was interrupted or killed, and went on."""
    undisturbed, made = in_python(planner)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        if kill:
            child("python", planner, path, 3 * made // 4)
        else:
            status = stopped(planner, path, 3 * made // 4, None).status
            if status != "interrupted":
                raise AssertionError(f"the run should have been interrupted, it is {status}")
        result, made_again = in_python(planner, path)
    if made_again >= made:
        raise AssertionError(f"nothing was resumed: all of {made} calls were made again")
    return same(result, undisturbed)


def same(result: sp.PlanResult, undisturbed: sp.PlanResult) -> Found:
    """What was found, where two runs agree."""
    found = of_plan(result)
    wrong = list(differences("resumed and undisturbed differ", of_plan(undisturbed), found))
    if wrong:
        raise AssertionError("; ".join(wrong))
    return found


def killed_while_compiled(planner: str) -> Found:
    """A run of compiled code that was killed, and went on."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        child("table", planner, path)
        result = on_table(planner, path)
    return same(result, on_table(planner, None))


def on_table(planner: str, checkpoint: Path | None) -> sp.PlanResult:
    """A long run of compiled code."""
    name, calls = COMPILED[planner]
    made = PLANNERS[planner](table(name).actions)
    return sp.plan(made, table(name), 0, seed=5, max_calls=calls, checkpoint=checkpoint)


def child(kind: str, planner: str, checkpoint: Path, after: int = 0) -> None:
    """A process that runs with a checkpoint and is killed on the way."""
    command = [sys.executable, "-m", "tests.golden", "die", kind, planner, str(checkpoint), str(after)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != -signal.SIGKILL:
        raise AssertionError(f"the process should have been killed, it ended with {ended.returncode}: {ended.stderr}")


def die(kind: str, planner: str, checkpoint: Path, after: int) -> None:
    """What that process does."""
    if kind == "python":
        stopped(planner, checkpoint, after, signal.SIGKILL)
        return
    written = checkpoint.with_name(checkpoint.name + "-wal")

    def watch() -> None:
        while not written.exists() or written.stat().st_size < 60_000:
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
    on_table(planner, checkpoint)


def resumptions() -> Iterator[tuple[str, Case]]:
    """Runs that were stopped on the way."""
    for planner in RESUMED:
        yield f"resumed/{planner}/interrupted", partial(resumed, planner, False)
    for planner in KILLED:
        yield f"resumed/{planner}/killed", partial(resumed, planner, True)
    for planner in COMPILED:
        yield f"resumed/{planner}/killed while compiled", partial(killed_while_compiled, planner)


# Decisions and the rest


def decision_model(name: str) -> Any:
    """What decisions are made on."""
    declared: dict[str, Any] = {"actions": 3, "discount": 0.8, "terminates": False}
    match name:
        case "floats":
            return sp.VectorModel(plane, **declared, reward_range=(0, 1), initial_state=np.array([1.0, -1.0]))
        case "whole numbers":
            return sp.VectorModel(queues, **declared, reward_range=(-300, 0), initial_state=np.array([5, 50, 20]))
    return model_of(name)


def decided(name: str, seed: int, workers: int, calls: int) -> Found:
    """A decision."""
    decision = sp.decide(decision_model(name), calls=calls, seed=seed, workers=workers)
    estimates = ("q", "q_errors", "regret", "returns", "differences", "difference_errors")
    return fields(decision, "action", *estimates, "q_intervals", "gap", "certified", "calls", "status")


def acted(name: str, seed: int, workers: int) -> Found:
    """Ten steps of an agent."""
    with sp.Agent(decision_model(name), calls=400, reference_calls=3_000, seed=seed, workers=workers) as agent:
        episode = agent.play(max_steps=10, seed=seed)
    found = fields(episode, "actions", "states", "rewards", "score", "discounted", "steps", "end", "deviations")
    return found | fields(agent, "calls", "reference_calls")


def unregularised(kind: str, seed: int, maker: Callable[[Any], Any] | None, cost: Floats | None) -> Found:
    """A plan for the ordinary value."""
    options: dict[str, Any] = {"bias": 0.2, "planner": maker, "cost": cost, "seed": seed, "max_calls": 6_000}
    found = sp.plan_unregularised(model_of(kind), **options)
    own: Found = fields(found, "value", "interval", "action") | bits({"certified": found.support != "estimate"})
    smooth = {"value": found.regularised_value, "interval": found.regularised_interval}
    regularised: Found = {"regularised": of_plan(found) | bits(smooth)}
    whole: Found = own | bits({"gap": found.bonus}) | regularised
    return whole


def compared(kind: str) -> Found:
    """The rows of a comparison."""
    names = ("smooth", "debiased", "gape, soft", "mdp-gape", "uct", "around, first")
    model = model_of(kind)
    planners = {name: PLANNERS[name](model.actions) for name in names}
    rows = sp.compare(planners, model, 0, calls=[200, 1_000], seeds=2).rows
    unlike = ("seconds", "settings")  # the clock, and words
    return {
        f"{row['planner']}/{row['budget']}/{row['seed']}": bits(
            {name: value for name, value in row.items() if name not in unlike}
        )
        for row in rows
    }


def forecasted(planner: str, kind: str) -> Found:
    """A price."""
    model = model_of(kind)
    return fields(sp.forecast(PLANNERS[planner](model.actions), model), "calls", "exponent", "prices")


def others() -> Iterator[tuple[str, Case]]:
    """Everything but plans."""
    models = ("table coins", "table long", "python long", "plane long", "floats", "whole numbers", "hill", "cart pole")
    for name in models:
        compiled = name in ("table coins", "table long", "hill", "cart pole")
        for seed in SEEDS:
            for workers in (1, 2) if compiled else (1,):
                after = f"{name}/seed {seed}/workers {workers}"
                yield f"decide/{after}", partial(decided, name, seed, workers, 10_000)
                if name in ("table long", "python long", "floats", "cart pole"):
                    yield f"agent/{after}", partial(acted, name, seed, workers)
    yield "decide/floats/seed 0/workers 2", partial(decided, "floats", 0, 2, 10_000)
    line = np.abs(np.subtract.outer(np.arange(2.0), np.arange(2.0)))
    for kind in ("table coins", "python ending"):
        for seed in SEEDS:
            for words, maker, cost in (
                ("default", None, None),
                ("debiased", partial(sp.DebiasedCruiser, epsilon=0.1), None),
                ("gape, transport", partial(sp.OTGapE, epsilon=0.1), line),
            ):
                yield f"unregularised/{words}/{kind}/seed {seed}", partial(unregularised, kind, seed, maker, cost)
    for kind in ("table coins", "python coins"):
        yield f"compare/{kind}", partial(compared, kind)
    for planner in FINE:
        yield f"forecast/{planner}/table easy", partial(forecasted, planner, "table easy")
    for planner in RECURSIVE | PUBLISHED:
        for kind in ("table coins",) if planner in PUBLISHED else ("table coins", "python ending", "short hill"):
            yield f"forecast/{planner}/{kind}", partial(forecasted, planner, kind)


def cases() -> dict[str, Case]:
    """All of them, by name."""
    found: dict[str, Case] = {}
    for name, case in (*plans(), *jitted(), *resumptions(), *others()):
        if name in found:
            raise AssertionError(f"there are two cases {name!r}")
        found[name] = case
    return found


# The file


def environment() -> dict[str, str]:
    """What the bits depend on, beside smoothplan."""
    return {"machine": platform.machine(), "python": platform.python_version()} | {
        name: version(name) for name in ("numpy", "numba", "scikit-learn")
    }


def differences(name: str, before: Any, after: Any) -> Iterator[str]:
    """Where two findings differ, in words."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from differences(f"{name}: {key}", before.get(key, "nothing"), after.get(key, "nothing"))
    elif before != after:
        yield f"{name}: was {shown(before)}, is {shown(after)}"


def shown(thing: Any) -> str:
    """A finding for people: what it would be without bits, too."""
    if isinstance(thing, list):
        return f"[{', '.join(map(shown, thing))}]"
    try:
        return f"{thing} ({float.fromhex(thing)!r})" if isinstance(thing, str) and "0x" in thing else str(thing)
    except ValueError:
        return thing if isinstance(thing, str) else str(thing)


def make() -> int:
    """Writes the file."""
    found = {name: case() for name, case in cases().items()}
    lines = [f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in found.items()]  # one for each case
    text = f'{{\n"environment": {json.dumps(environment())},\n"cases": {{\n' + ",\n".join(lines) + "\n}\n}\n"
    FILE.write_text(text, encoding="utf-8")
    print(f"{len(found)} cases in {FILE}")
    return 0


def check(only: str, times: bool) -> int:
    """Computes the cases again whose names contain a text, and prints what differs; 1 if anything does."""
    known = json.loads(FILE.read_text("utf-8"))
    for difference in differences("note: another environment", known["environment"], environment()):
        print(difference)
    started, count, wrong = time.perf_counter(), 0, 0
    there, here = known["cases"], cases()
    for name in (*here, *(name for name in there if name not in here)):
        if only not in name:
            continue
        begun = time.perf_counter()
        try:
            after: Any = here[name]() if name in here else "no case any more"
        except Exception as error:  # a change may break one case, and others should be seen
            after = f"{type(error).__name__}: {error}"
        for difference in differences(name, there.get(name, "no case"), after):
            print(difference, flush=True)
            wrong += 1
        count += 1
        if times:
            print(f"{time.perf_counter() - begun:8.3f} s  {name}", flush=True)
    print(f"{count} cases, {wrong} differences, {time.perf_counter() - started:.0f} s")
    if count == 0:
        print(f"no case has {only!r} in its name")
    return 1 if wrong or not count else 0


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("make", help="write tests/golden.json")
    checking = commands.add_parser("check", help="compute everything again, and print each difference")
    checking.add_argument("--only", default="", metavar="SUBSTRING", help="only cases whose name contains this")
    checking.add_argument("--times", action="store_true", help="print the seconds of each case")
    dying = commands.add_parser("die", help="used by the cases of runs that are killed")
    dying.add_argument("kind", choices=["python", "table"])
    dying.add_argument("planner")
    dying.add_argument("checkpoint", type=Path)
    dying.add_argument("after", type=int)
    arguments = parser.parse_args()
    if arguments.command == "die":
        die(arguments.kind, arguments.planner, arguments.checkpoint, arguments.after)
        return 0
    return make() if arguments.command == "make" else check(arguments.only, arguments.times)


if __name__ == "__main__":
    sys.exit(main())
