"""The golden file: the bits of every planner's results, to show that a change of code keeps them.

    python -m tests.golden make                      # before the change: writes tests/golden.json
    python -m tests.golden check                     # after it: computes everything again, and prints each difference
    python -m tests.golden check --only "plan/uct"   # only the cases whose name contains this

Only the public namespace is used here, so modules may be moved and renamed. The last bits depend on the processor and
on the versions of the libraries, so the file is made anew on each machine and is not part of the repository.
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

import smoothplan as sp

FILE = Path(__file__).with_suffix(".json")
SEEDS = (0, 1)
ENVIRONMENT = {name: version(name) for name in ("numpy", "numba", "scikit-learn")}  # the bits depend on it
ENVIRONMENT |= {"machine": platform.machine(), "python": platform.python_version()}
SOFT, WARM, HARD = sp.LogSumExp(1.0), sp.LogSumExp(2.0), sp.HardMax()

Found = dict[str, Any]  # words, whole numbers, and floats as texts of `float.hex`, in lists and dictionaries
Cases = Iterator[tuple[str, Callable[[], Found]]]


def bits(thing: Any) -> Any:
    """A thing for JSON. Floats become texts that say every bit."""
    if isinstance(thing, np.ndarray | np.generic):
        thing = thing.tolist()
    if isinstance(thing, dict):
        return {str(name): bits(value) for name, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [bits(value) for value in thing]
    return thing.hex() if isinstance(thing, float) else thing


def fields(thing: Any, names: str) -> Found:
    return {name: bits(getattr(thing, name)) for name in names.split()}


def of_plan(result: sp.PlanResult) -> Found:
    return fields(result, "value interval action calls q q_intervals status")


class Simulator:
    """A table as a simulator in Python, which counts its calls and may end the run after many."""

    calls, after, pause_after = 0, math.inf, math.inf
    ending: signal.Signals | None = None  # a signal to send after so many calls; None for an interrupt

    def __init__(self, table: sp.TabularModel, plane: bool) -> None:
        self.table, self.plane = table, plane  # whether states are pairs of floats
        self.rewards = np.broadcast_to(table.rewards.reshape(*table.rewards.shape[:2], -1), table.successors.shape)
        self.bounds = np.cumsum(table.probabilities, axis=-1)[..., :-1]

    def __call__(self, states: Any, actions: Any, rng: np.random.Generator) -> Any:
        if self.calls >= self.after:
            if self.ending is not None:
                os.kill(os.getpid(), self.ending)
            raise KeyboardInterrupt
        if self.calls >= self.pause_after:
            self.pause_after = math.inf
            time.sleep(1.1)
        self.calls += len(actions)
        here = states[:, 0].astype(np.int64) if self.plane else states
        drawn = here, actions, (self.bounds[here, actions] < rng.random(len(actions))[:, None]).sum(axis=1)
        next_states, rewards = self.table.successors[drawn], self.rewards[drawn]
        if self.table.reward_kind == "bernoulli":
            rewards = (rng.random(len(actions)) < rewards).astype(np.float64)
        if self.plane:
            next_states = np.stack([next_states, next_states % 2.0], axis=1)
        return next_states, rewards, self.table.ends[drawn]


def ending() -> sp.TabularModel:
    """Rewards of either sign that depend on the next state, and every fourth state terminal."""
    rng, shape = np.random.default_rng(1), (12, 2, 3)
    parts = rng.dirichlet(np.ones(3), size=shape[:2]), rng.integers(12, size=shape), rng.uniform(-1.0, 2.0, size=shape)
    options: dict[str, Any] = {"reward_kind": "bounded", "reward_range": (-1.0, 2.0)}
    return sp.TabularModel(*parts, discount=0.3, terminal=np.arange(12) % 4 == 3, **options)


def tied() -> sp.TabularModel:
    """The easy table with two actions alike at the state 0."""
    easy = model_of("table easy")
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
    """Three queues, one of which is served faster."""
    arrivals, served = rng.integers(0, 3, states.shape), 1 + 3 * (np.arange(3) == actions[:, None])
    return np.clip(states + arrivals - served, 0, 99), -states.sum(axis=1).astype(np.float64)


def endless(kind: Any, step: Any, start: Any, discount: float, rewards: tuple[float, float] = (0, 1)) -> Any:
    """A model with three actions that never ends."""
    declared = {"actions": 3, "discount": discount, "reward_range": rewards, "terminates": False}
    return kind(step, **declared, initial_state=np.array(start))


MODELS: dict[str, Callable[[], Any]] = {
    "table coins": lambda: sp.models.garnet(12, 2, 2, discount=0.3, seed=1, reward_kind="bernoulli"),
    "table easy": lambda: sp.models.garnet(12, 2, 2, discount=0.1, seed=1, reward_kind="bernoulli"),
    "table tied": tied,
    "table ending": ending,
    "table long": lambda: sp.models.garnet(20, 3, 3, discount=0.9, seed=2),
    "short hill": partial(endless, sp.JitModel, hill, [1.0], 0.3),
    "hill": partial(endless, sp.JitModel, hill, [1.0], 0.9),
    "mountain car": partial(sp.models.mountain_car, discount=0.9),
    "cart pole": partial(sp.models.cart_pole, discount=0.95),
    "floats": partial(endless, sp.VectorModel, plane, [1.0, -1.0], 0.8),
    "whole numbers": partial(endless, sp.VectorModel, queues, [5, 50, 20], 0.8, (-300, 0)),
}


def simulated(name: str, plane: bool = False) -> sp.VectorModel:
    """A table of which only a simulator in Python is known; its states are pairs of floats on a plane."""
    known = model_of(f"table {name}")
    names = ("actions", "discount", "reward_range", "reward_kind", "max_successors", "terminates")
    declared: dict[str, Any] = {each: getattr(known, each) for each in names}
    return sp.VectorModel(Simulator(known, plane), **declared, initial_state=np.zeros(2) if plane else 0)


@cache
def model_of(kind: str) -> Any:
    return MODELS[kind]() if kind in MODELS else simulated(kind.split()[1], kind.startswith("plane"))


def transport(actions: int, tau: float = 1.0, states: tuple[int, ...] | None = None) -> sp.OptimalTransport:
    """Optimal transport between actions in a row, to one prior, or to one for each state."""
    cost = np.abs(np.subtract.outer(np.arange(actions), np.arange(actions))) / max(actions - 1, 1)
    prior = np.random.default_rng(0).dirichlet(np.ones(actions), size=states)
    return sp.OptimalTransport(cost=cost, tau=tau, lam=0.3, reference=prior)


by_state = partial(transport, states=(12,))


def around(actions: int, backup: Any = SOFT, **options: Any) -> sp.ReferenceCruiser:
    """A planner around a poor table."""
    poor = np.random.default_rng(0).normal(size=(20, actions))
    return sp.ReferenceCruiser(backup, sp.TabularReference(poor), **options)


@cache
def on_grid(kind: str, order: Any) -> sp.ReferenceCruiser:
    """A planner around values on a grid."""
    backup = sp.LogSumExp(0.1)
    reference = sp.GridReference.build(model_of(kind), backup, cells=6, seed=3)
    return sp.ReferenceCruiser(backup, reference, order=order, epsilon=0.2)


Makers = dict[str, Callable[[int], Any]]  # from the number of actions to a planner

RECURSIVE: Makers = {
    "sparse": lambda _: sp.SparseSampling(HARD, 0.05),
    "smooth": lambda _: sp.SmoothCruiser(SOFT, 0.05),
    "smooth, coarse": lambda _: sp.SmoothCruiser(SOFT, 0.4),
    "smooth, transport": lambda actions: sp.SmoothCruiser(transport(actions), 0.05),
    "second": lambda _: sp.SecondOrderSmoothCruiser(SOFT, 0.05),
    "second, transport": lambda actions: sp.SecondOrderSmoothCruiser(transport(actions), 0.05),
    "debiased": lambda _: sp.DebiasedCruiser(SOFT, 0.05),
    "debiased, coarse": lambda _: sp.DebiasedCruiser(SOFT, 0.3),
    "debiased, transport": lambda actions: sp.DebiasedCruiser(transport(actions), 0.05),
}
PUBLISHED: Makers = {  # with constants that need rewards of 0 and 1 and no ends
    "sparse, paper": lambda _: sp.SparseSampling(HARD, 0.5, variant="paper"),
    "smooth, paper": lambda _: sp.SmoothCruiser(SOFT, 1.5, variant="paper"),
    "second, paper": lambda _: sp.SecondOrderSmoothCruiser(SOFT, 0.5, variant="paper"),
}
FINE: Makers = {  # so accurate that they differ: with levels of the second order, and debiased ones
    "smooth, fine": lambda _: sp.SmoothCruiser(WARM, 0.003),
    "second, fine": lambda _: sp.SecondOrderSmoothCruiser(WARM, 0.003),
    "second, transport, fine": lambda actions: sp.SecondOrderSmoothCruiser(transport(actions, 6.0), 0.003),
    "debiased, fine": lambda _: sp.DebiasedCruiser(SOFT, 0.003),
    "debiased, transport, fine": lambda actions: sp.DebiasedCruiser(transport(actions, 6.0), 0.003),
}
GAPS: Makers = {
    "gap cruiser, fine": lambda _: sp.OTGapCruiser(WARM, 0.01),
    "gap cruiser, fine, biased": lambda _: sp.OTGapCruiser(WARM, 0.005, debias=0),
}
SEARCHES: Makers = {
    "gape, hard": lambda _: sp.OTGapE(HARD, 0.05),
    "gape, soft": lambda _: sp.OTGapE(SOFT, 0.05),
    "gape, soft, coarse": lambda _: sp.OTGapE(SOFT, 0.5),
    "gape, transport": lambda actions: sp.OTGapE(transport(actions), 0.05),
    "gape, Tsallis": lambda _: sp.OTGapE(sp.Tsallis(1.0), 0.05),
    "gape, trajectories": lambda _: sp.OTGapE(SOFT, 0.05, sampling="trajectories"),
    "gape, stage-wise": lambda _: sp.OTGapE(SOFT, 0.05, horizon=4, counts="stage-wise"),
    "mdp-gape": lambda _: sp.MDPGapE(epsilon=0.05, sampling="trajectories"),
    "gap cruiser": lambda _: sp.OTGapCruiser(SOFT, 0.05),
    "gap cruiser, first": lambda _: sp.OTGapCruiser(SOFT, 0.05, order=1),
    "uct": lambda _: sp.UCT(depth=6),
    "uct, open": lambda _: sp.UCT(depth=6, loop="open"),
}
CHAINS: Makers = {
    "around, first": partial(around, order=1, epsilon=0.05),
    "around, second": partial(around, order=2, epsilon=0.05),
    "around, second, coarse": partial(around, order=2, epsilon=1.0),
    "around, transport": lambda actions: around(actions, transport(actions), epsilon=0.05),
    "around, error range": partial(around, order=2, epsilon=0.5, error_range=8.0),
    "made, first": lambda _: sp.ReferenceCruiser(SOFT, order=1, epsilon=0.05),
    "made, second": lambda _: sp.ReferenceCruiser(SOFT, order=2, epsilon=0.05),
}
BY_STATE: Makers = {
    "debiased, transport by state": lambda actions: sp.DebiasedCruiser(by_state(actions), 0.05),
    "gape, transport by state": lambda actions: sp.OTGapE(by_state(actions), 0.05),
    "made, transport by state": lambda actions: sp.ReferenceCruiser(by_state(actions), epsilon=0.05),
}
PLANNERS = RECURSIVE | PUBLISHED | FINE | GAPS | SEARCHES | CHAINS | BY_STATE


def planned(planner: str, kind: str, **options: Any) -> Found:
    model = model_of(kind)
    made = on_grid(kind, int(planner[-1])) if planner.startswith("grid") else PLANNERS[planner](model.actions)
    return of_plan(sp.plan(made, model, **options))


def plans() -> Cases:
    """Every planner on tables, and on simulators in Python of the same; some on jitted models."""

    def case(planner: str, kind: str, calls: int | None, engine: str, seed: int, workers: int) -> Any:
        options = {"max_calls": calls, "engine": engine, "seed": seed, "workers": workers}
        name = f"plan/{planner}/{kind}/{engine}/seed {seed}/workers {workers}"
        return name, partial(planned, planner, kind, **options)

    groups: list[tuple[Makers, str, int | None]] = [
        (RECURSIVE, "coins ending", 4_000),
        (PUBLISHED, "coins", 4_000),
        (FINE, "easy", None),
        (GAPS, "tied", None),
        (SEARCHES, "coins ending long", 3_000),
        (CHAINS, "ending long", 6_000),
    ]
    runs = [("table", "auto", 1), ("table", "auto", 2), ("table", "batched", 1), ("python", "auto", 1)]
    for makers, names, calls in groups:
        slow = [] if calls is None else [("python", "batched", 1)]  # as "auto", and it takes a while without a limit
        for planner, name, (kind, engine, workers), seed in product(makers, names.split(), runs + slow, SEEDS):
            yield case(planner, f"{kind} {name}", calls, engine, seed, workers)
    for planner in ("debiased", "gape, hard", "around, second"):  # processes start slowly
        yield case(planner, "python ending", 4_000, "auto", 0, 2)
    grids = [(f"grid, order {order}", kind, 20_000) for kind in ("hill", "mountain car") for order in (1, 2)]
    compiled = [("uct", "cart pole", 6_000), ("made, first", "cart pole", 6_000), ("made, second", "hill", 6_000)]
    short = [(planner, "short hill", 6_000) for planner in ("debiased", "smooth", "gap cruiser", "gape, soft")]
    for seed, (engine, workers) in product(SEEDS, (("auto", 1), ("auto", 2), ("batched", 1))):
        batched = short if workers == 1 else short[: 1 - seed]
        for planner, kind, calls in [*grids, *compiled, *batched]:
            yield case(planner, kind, calls, engine, seed, workers)
    for planner in ("sparse", "smooth, coarse", "debiased, coarse", "gape, soft, coarse", "around, second, coarse"):
        for kind in ("table coins", "python coins"):
            yield f"plan/{planner}/{kind}/no limit", partial(planned, planner, kind)
    for planner, engine in product(BY_STATE, ("auto", "batched")):
        options = {"state": 0, "max_calls": 3_000, "engine": engine}
        yield f"plan/{planner}/table ending/{engine}", partial(planned, planner, "table ending", **options)


RESUMED: dict[str, tuple[str, int]] = {"smooth": ("coins", 20_000)}  # in Python, with tables and limits on calls
RESUMED |= dict.fromkeys(("second, transport", "debiased", "gap cruiser", "made, first"), ("ending", 20_000))
RESUMED |= {"around, second": ("long", 20_000), "gape, hard": ("long", 10_000), "gape, Tsallis": ("ending", 10_000)}
RESUMED |= {"mdp-gape": ("ending", 2_000), "uct": ("long", 3_000)}
KILLED = ("smooth", "gape, hard", "gap cruiser", "around, second")
COMPILED = ("debiased", "around, second")  # killed while they sample a table


def run(planner: str, how: str, checkpoint: Path | None = None, **ends: Any) -> tuple[sp.PlanResult, int]:
    """A run, and the calls of its simulator in Python, which may end it."""
    name, calls = RESUMED[planner]
    model = simulated(name)
    simulator: Any = model.step
    vars(simulator).update(ends)
    options: dict[str, Any] = {"seed": 5, "checkpoint": checkpoint}
    made = PLANNERS[planner](model.actions)
    if how == "killed while compiled":
        return sp.plan(made, model_of(f"table {name}"), 0, max_calls=30_000_000, **options), 0
    return sp.plan(made, model, max_calls=calls, **options), simulator.calls


def stopped(planner: str, how: str, checkpoint: Path, after: int) -> sp.PlanResult:
    """A run that ends itself."""
    if how == "killed while compiled":
        threading.Thread(target=watch, args=[checkpoint.with_name(checkpoint.name + "-wal")], daemon=True).start()
    # A search is written once a second: the simulator pauses for as long before it ends it.
    pause_after = after // 2 if planner in SEARCHES and planner != "gap cruiser" else math.inf
    signals = signal.SIGKILL if how == "killed" else None
    return run(planner, how, checkpoint, after=after, pause_after=pause_after, ending=signals)[0]


def watch(written: Path) -> None:
    """Kills this process once a file is large."""
    while not written.exists() or written.stat().st_size < 60_000:
        time.sleep(0.002)
    os.kill(os.getpid(), signal.SIGKILL)


def resumed(planner: str, how: str) -> Found:
    """A run that was interrupted or killed, and went on: the same as an undisturbed one."""
    undisturbed, made = run(planner, how)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.ckpt"
        if how == "interrupted":
            assert stopped(planner, how, path, 3 * made // 4).status == "interrupted"
        else:
            code = f"from tests.golden import *; stopped({planner!r}, {how!r}, Path({str(path)!r}), {3 * made // 4})"
            ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            assert ended.returncode == -signal.SIGKILL, ended.stderr
        result, again = run(planner, how, path)
    assert again < made or how == "killed while compiled", f"all of {made} calls were made again"
    wrong = list(differences("resumed and undisturbed differ", of_plan(undisturbed), of_plan(result)))
    assert not wrong, "; ".join(wrong)
    return of_plan(result)


def decided(name: str, seed: int, workers: int) -> Found:
    decision = sp.decide(model_of(name), calls=10_000, seed=seed, workers=workers)
    estimates = "q q_errors regret returns differences difference_errors"
    return fields(decision, f"action {estimates} q_intervals gap certified calls status")


def acted(name: str, seed: int, workers: int) -> Found:
    """Ten steps of an agent."""
    with sp.Agent(model_of(name), calls=400, reference_calls=3_000, seed=seed, workers=workers) as agent:
        episode = agent.play(max_steps=10, seed=seed)
    found = fields(episode, "actions states rewards score discounted steps end deviations")
    return found | fields(agent, "calls reference_calls")


def unregularised(kind: str, seed: int, maker: Any, cost: Any) -> Found:
    options: dict[str, Any] = {"bias": 0.2, "planner": maker, "cost": cost, "seed": seed, "max_calls": 6_000}
    found = sp.plan_unregularised(model_of(kind), **options)
    smooth = of_plan(found) | {"value": found.regularised_value, "interval": found.regularised_interval}
    own = {"certified": found.support != "estimate", "gap": found.bonus, "regularised": smooth}
    return fields(found, "value interval action") | {name: bits(value) for name, value in own.items()}


def compared(kind: str) -> Found:
    names, model = ("smooth", "debiased", "gape, soft", "mdp-gape", "uct", "around, first"), model_of(kind)
    planners = {name: PLANNERS[name](model.actions) for name in names}
    found = {}
    for row in map(dict, sp.compare(planners, model, 0, calls=[200, 1_000], seeds=2).rows):
        del row["seconds"], row["settings"]  # the clock, and words
        found[f"{row['planner']}/{row['budget']}/{row['seed']}"] = bits(row)
    return found


def prices(forecast: sp.Forecast) -> list[tuple[float, int]]:
    """(ε, calls) around the present ε, the largest ε first; prices that no float can hold are left out."""
    epsilon, most = forecast.schedule.epsilon, 10**11

    def at(epsilon: float) -> tuple[float, int]:
        return epsilon, sp.forecast(forecast.planner.with_epsilon(epsilon), forecast.model).calls

    larger, smaller = [(epsilon, forecast.calls)], [(epsilon, forecast.calls)]
    try:
        while len(larger) <= 2 or (len(larger) <= 6 and larger[-1][1] > most):
            larger.append(at(larger[-1][0] * 2.0))
        while len(smaller) <= 3 and smaller[-1][1] <= most:
            smaller.append(at(smaller[-1][0] / 2.0))
    except ValueError:  # there is no schedule for that ε
        pass
    return [point for point in (*larger[:0:-1], *smaller) if point[1] < 10**300]


def forecasted(planner: str, kind: str) -> Found:
    model = model_of(kind)
    forecast = sp.forecast(PLANNERS[planner](model.actions), model)
    return fields(forecast, "calls exponent") | {"prices": bits(prices(forecast))}


def others() -> Cases:
    """Everything but plans that are left alone."""
    for how, planners in (("interrupted", RESUMED), ("killed", KILLED), ("killed while compiled", COMPILED)):
        for planner in planners:
            yield f"resumed/{planner}/{how}", partial(resumed, planner, how)
    runs = [*product(("table coins", "table long", "hill", "cart pole"), SEEDS, (1, 2)), ("floats", 0, 2)]
    for name, seed, workers in [*runs, *product(("python long", "plane long", "floats", "whole numbers"), SEEDS, (1,))]:
        yield f"decide/{name}/seed {seed}/workers {workers}", partial(decided, name, seed, workers)
        if name in ("table long", "python long", "floats", "cart pole") and (name, workers) != ("floats", 2):
            yield f"agent/{name}/seed {seed}/workers {workers}", partial(acted, name, seed, workers)
    smoothed: dict[str, tuple[Any, Any]] = {
        "default": (None, None),
        "debiased": (partial(sp.DebiasedCruiser, epsilon=0.1), None),
        "gape, transport": (partial(sp.OTGapE, epsilon=0.1), 1.0 - np.eye(2)),
    }
    for kind, seed, words in product(("table coins", "python ending"), SEEDS, smoothed):
        yield f"unregularised/{words}/{kind}/seed {seed}", partial(unregularised, kind, seed, *smoothed[words])
    for kind in ("table coins", "python coins"):
        yield f"compare/{kind}", partial(compared, kind)
    priced = [*product(FINE, ["table easy"]), *product(PUBLISHED, ["table coins"])]
    for planner, kind in [*priced, *product(RECURSIVE, ("table coins", "python ending", "short hill"))]:
        yield f"forecast/{planner}/{kind}", partial(forecasted, planner, kind)


def differences(name: str, before: Any, after: Any) -> Iterator[str]:
    """Where two findings differ, in words."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(before.keys() | after.keys()):
            yield from differences(f"{name}: {key}", before.get(key, "nothing"), after.get(key, "nothing"))
    elif before != after:
        yield f"{name}: was {before}, is {after}"


def make(cases: dict[str, Callable[[], Found]]) -> int:
    found = {name: case() for name, case in cases.items()}
    lines = [f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in found.items()]  # one for each case
    text = f'{{\n"environment": {json.dumps(ENVIRONMENT)},\n"cases": {{\n' + ",\n".join(lines) + "\n}\n}\n"
    FILE.write_text(text, encoding="utf-8")
    print(f"{len(found)} cases in {FILE}")
    return 0


def check(cases: dict[str, Callable[[], Found]], only: str) -> int:
    """Computes the cases again whose names contain a text, and prints what differs; 1 if anything does."""
    known, started, wrong = json.loads(FILE.read_text("utf-8")), time.perf_counter(), 0
    for difference in differences("note: another environment", known["environment"], ENVIRONMENT):
        print(difference)
    names = [name for name in cases | known["cases"] if only in name]
    for name in names:
        try:
            after: Any = cases[name]() if name in cases else "no case any more"
        except Exception as error:  # a change may break one case, and others should be seen
            after = f"{type(error).__name__}: {error}"
        for difference in differences(name, known["cases"].get(name, "no case"), after):
            print(difference, flush=True)
            wrong += 1
    print(f"{len(names)} cases, {wrong} differences, {time.perf_counter() - started:.0f} s")
    return 1 if wrong or not names else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["make", "check"])
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="check only cases whose name contains this")
    arguments = parser.parse_args()
    everything = dict([*plans(), *others()])
    sys.exit(make(everything) if arguments.command == "make" else check(everything, arguments.only))
