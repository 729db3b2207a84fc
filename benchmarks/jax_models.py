"""Throughput of `JaxModel` beside the bare function, JAX's jit of vmap, which is given its keys.

    PYTHONPATH=. python benchmarks/jax_models.py [--rows 1024 4096 16384 65536]

prints calls a second through the oracle, which makes the keys, and counts and checks the calls; and their ratio to the
bare function's, which is given and returns either JAX's arrays or NumPy's, as a planner needs.
Repeats are interleaved and the fastest counts, so that neither the speed nor the load of the machine matters much.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import smoothplan as sp

GOAL = 0.5
"""Throughput as a fraction of the bare function's, at 4,096 rows."""

REPEATS = 40
CALLS = 20
"""Of one measurement."""


def cart_pole(state: Any, action: Any, key: Any) -> Any:
    """A pole on a cart, without noise."""
    _, speed, angle, turn = state
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    force = (jnp.where(action == 1, 10.0, -10.0) + 0.05 * turn**2 * sine) / 1.1
    falling = (9.8 * sine - cosine * force) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    pushed = force - 0.05 * falling * cosine / 1.1
    moved = state + 0.02 * jnp.stack([speed, pushed, turn, falling])
    return moved, 1.0, (jnp.abs(moved[0]) > 2.4) | (jnp.abs(moved[2]) > 0.2)


def windy(state: Any, action: Any, key: Any) -> Any:
    """A pole on a cart, in the wind."""
    moved, reward, terminal = cart_pole(state, action, key)
    return moved + 0.001 * jax.random.normal(key, (4,)), reward, terminal


def tree(state: Any, action: Any, key: Any) -> Any:
    """A pole on a cart in the wind, with a clock: a dictionary."""
    moved, reward, terminal = windy(state["body"], action, key)
    return {"body": moved, "time": state["time"] + 1}, reward, terminal | (state["time"] > 500)


def seconds(run: Callable[[], Any]) -> float:
    """Of one call."""
    begun = time.perf_counter()
    for _ in range(CALLS):
        run()
    return (time.perf_counter() - begun) / CALLS


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="Throughput of JaxModel beside the bare function.")
    parser.add_argument("--rows", nargs="+", type=int, default=[1_024, 4_096, 16_384, 65_536])
    print("| step | rows | M calls/s | of the bare function | with NumPy's arrays | goal |\n|---|---|---|---|---|---|")
    for rows in parser.parse_args().rows:
        for step in (cart_pole, windy, tree):
            start: Any = {"body": np.zeros(4), "time": 0} if step is tree else np.zeros(4)
            model = sp.JaxModel(step, actions=2, discount=0.99, reward_range=(1, 1), initial_state=start)
            draws, oracle, bare = np.random.default_rng(0), sp.Oracle(model, seed=0), jax.jit(jax.vmap(step))
            states, actions = draws.uniform(-0.1, 0.1, (rows, 4)).astype(np.float32), draws.integers(2, size=rows)
            body: Any = states
            if step is tree:
                body = {"body": states, "time": np.zeros(rows, np.int32)}
                states = np.column_stack([states, np.zeros(rows)])
            keys = jax.random.split(jax.random.key(0), rows)
            given, plain = (
                (jax.tree.map(jnp.asarray, body), jnp.asarray(actions), keys),
                (body, actions.astype(np.int32), keys),
            )
            ways: list[Callable[[], Any]] = [
                lambda oracle=oracle, given=(states, actions): oracle.sample(*given),  # type: ignore[misc]
                lambda bare=bare, given=given: jax.block_until_ready(bare(*given)),  # type: ignore[misc, no-untyped-call]
                lambda bare=bare, given=plain: jax.tree.map(np.asarray, bare(*given)),  # type: ignore[misc]
            ]
            times = np.array([[seconds(way) for way in ways] for _ in range(REPEATS)]).min(axis=0)
            goal = f"{GOAL}" if rows == 4_096 else ""
            own, *ratios = rows / times[0] / 1e6, times[1] / times[0], times[2] / times[0]
            print(f"| {step.__name__} | {rows:,} | {own:.1f} | {ratios[0]:.2f} | {ratios[1]:.2f} | {goal} |")


if __name__ == "__main__":
    main()
