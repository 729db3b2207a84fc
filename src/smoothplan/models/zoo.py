"""Known problems, as models. Each function builds one; `smoothplan models` lists them."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smoothplan.base import arguments
from smoothplan.base.arguments import Floats, Ints
from smoothplan.base.compiling import compiled
from smoothplan.models.model import RewardKind, States
from smoothplan.models.tabular import TabularModel
from smoothplan.models.vector import JitModel, VectorModel

MOST_STATES = 100_000
"""The most states of a table that is written entry by entry."""

Branch = tuple[float, int, float]
"""(probability, next state, reward)."""

COMPASS = ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))
"""The eight directions (row, column), clockwise from north."""


def _from_rule(
    states: int, actions: Sequence[str], rule: Callable[[int, int], list[Branch]], **declarations: Any
) -> TabularModel:
    """The table of a rule that lists the outcomes of a state and an action; those of probability 0 are dropped."""
    numbers = range(len(actions))
    table = [[[(*found, False) for found in rule(s, a) if found[0] > 0] for a in numbers] for s in range(states)]
    return TabularModel.from_outcomes(table, **{"terminal": None, "action_names": actions} | declarations)


def garnet(
    states: int = 50,
    actions: int = 2,
    branching: int = 4,
    discount: float = 0.9,
    seed: int = 0,
    sparsity: float = 0.0,
    reward_kind: RewardKind = "deterministic",
) -> TabularModel:
    """A random model (Archibald, McKinnon and Thomas, 1995): each pair has `branching` random successors.

    Args:
        states: S.
        actions: K.
        branching: successors of each pair, drawn without repetition; their probabilities are the gaps between sorted
            uniform numbers.
        discount: γ.
        seed: the same seed gives the same model.
        sparsity: the probability that a reward is 0; the others are uniform on [0, 1].
        reward_kind: "deterministic", or "bernoulli" to draw rewards 0 or 1 with these means.
    """
    states, actions = arguments.whole("states", states), arguments.whole("actions", actions)
    branching = arguments.whole("branching", branching, most=states)
    entries = states * actions * branching
    arguments.whole("states · actions · branching", entries, most=10**8)  # memory: a few gigabytes
    arguments.whole("states · actions · branching²", entries * branching, most=2 * 10**10)  # time: about a minute
    sparsity = arguments.number("sparsity", sparsity, least=0.0, most=1.0)
    rng = np.random.default_rng(arguments.whole("seed", seed, least=0))
    successors = _subsets(states, branching, states * actions, rng).reshape(states, actions, branching)
    cuts = np.sort(rng.random((states, actions, branching - 1)), axis=-1)
    probabilities = np.diff(cuts, axis=-1, prepend=0.0, append=1.0)
    rewards = rng.random((states, actions)) * (rng.random((states, actions)) >= sparsity)
    declared: dict[str, Any] = {"discount": discount, "reward_kind": reward_kind, "reward_range": (0.0, 1.0)}
    return TabularModel(probabilities, successors, rewards, **declared)


def _subsets(population: int, size: int, count: int, rng: np.random.Generator) -> Ints:
    """`count` uniform subsets of range(population), [count, size], by Floyd's algorithm."""
    chosen = np.empty((count, size), dtype=np.int64)
    for column, largest in enumerate(range(population - size, population)):
        candidate = rng.integers(largest + 1, size=count)
        taken = (chosen[:, :column] == candidate[:, None]).any(axis=1)
        chosen[:, column] = np.where(taken, largest, candidate)
    return chosen


def chain(states: int = 5, discount: float = 0.95, slip: float = 0.2) -> TabularModel:
    """A chain to walk along (Dearden, Friedman and Russell, 1998): a small reward now, or a large one at its end.

    "forward" moves on, for nothing but a reward of 10 at the last state; "back" returns to the first for a reward of
    2. With probability `slip` an action has the other's effect.

    Args:
        states: length of the chain.
        discount: γ.
        slip: probability of the other action's effect.
    """
    states = arguments.whole("states", states, least=2, most=MOST_STATES)
    slip = arguments.number("slip", slip, least=0.0, most=1.0)

    def outcomes(state: int, action: int) -> list[Branch]:
        last = states - 1
        effects: list[tuple[int, float]] = [(min(state + 1, last), 10.0 if state == last else 0.0), (0, 2.0)]
        return [(1.0 - slip, *effects[action]), (slip, *effects[1 - action])]

    return _from_rule(states, ("forward", "back"), outcomes, discount=discount, reward_range=(0.0, 10.0))


def river_swim(states: int = 6, discount: float = 0.95) -> TabularModel:
    """A river to swim up (Strehl and Littman, 2008): drifting down is safe and pays 0.005, the far end pays 1.

    Swimming right succeeds with probability 0.35, stays with 0.6 and drifts back with 0.05 (at the ends 0.6 to move on
    or stay, 0.4 otherwise); swimming left always succeeds.

    Args:
        states: places along the river.
        discount: γ.
    """
    states = arguments.whole("states", states, least=2, most=MOST_STATES)
    last = states - 1

    def outcomes(state: int, action: int) -> list[Branch]:
        if action == 0:
            return [(1.0, max(state - 1, 0), 0.005 if state == 0 else 0.0)]
        if state == 0:
            return [(0.4, 0, 0.0), (0.6, 1, 0.0)]
        if state == last:
            return [(0.6, last, 1.0), (0.4, last - 1, 1.0)]
        return [(0.35, state + 1, 0.0), (0.6, state, 0.0), (0.05, state - 1, 0.0)]

    declared: dict[str, Any] = {"discount": discount, "state_names": [f"place {place}" for place in range(states)]}
    return _from_rule(states, ("left", "right"), outcomes, reward_range=(0.0, 1.0), **declared)


def two_room(size: int = 4, discount: float = 0.95, slip: float = 0.1) -> TabularModel:
    """Two square rooms joined by a door; start in one corner, a reward of 1 and the end in the opposite corner.

    Args:
        size: side of each room.
        discount: γ.
        slip: probability of moving at a right angle to the intended direction, half to each side.
    """
    size = arguments.whole("size", size, most=math.isqrt(MOST_STATES // 2))
    rows = [list("." * size + "#" + "." * size) for _ in range(size)]
    rows[size // 2][size] = "."
    rows[0][0], rows[-1][-1] = "S", "G"
    return _grid_world(["".join(row) for row in rows], slip, discount)


def frozen_lake(map_name: str = "4x4", slippery: bool = True, discount: float = 0.95) -> TabularModel:
    """Gymnasium's FrozenLake: cross the ice to the goal, worth 1; a hole ends the episode. Needs no Gymnasium.

    Args:
        map_name: "4x4" or "8x8".
        slippery: whether a move goes astray to either side with probability 1/3 each.
        discount: γ.
    """
    maps = {
        "4x4": "SFFF FHFH FFFH HFFG",
        "8x8": "SFFFFFFF FFFFFFFF FFFHFFFF FFFFFHFF FFFHFFFF FHHFFFHF FHFFHFHF FFFHFFFG",
    }
    if not isinstance(map_name, str) or map_name not in maps:
        raise ValueError(f"map_name must be one of {', '.join(maps)}, got {map_name!r}")
    slip = 2.0 / 3.0 if arguments.flag("slippery", slippery) else 0.0
    return _grid_world(maps[map_name].split(), slip, discount)


def _grid_world(rows: Sequence[str], slip: float, discount: float) -> TabularModel:
    """A grid read from a map: # wall, S start, G goal (reward 1, terminal), H hole (terminal), anything else free.

    Actions and their order are FrozenLake's; a slip goes to the left or to the right of the intended direction.
    """
    slip = arguments.number("slip", slip, least=0.0, most=1.0)
    cells = [(r, c) for r, row in enumerate(rows) for c, mark in enumerate(row) if mark != "#"]
    number = {cell: index for index, cell in enumerate(cells)}
    marks = [rows[r][c] for r, c in cells]
    moves = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}
    steps = list(moves.values())

    def outcomes(state: int, action: int) -> list[Branch]:
        row, column = cells[state]
        result = []
        for turn, probability in ((-1, slip / 2.0), (0, 1.0 - slip), (1, slip / 2.0)):
            down, right = steps[(action + turn) % len(steps)]
            successor = number.get((row + down, column + right), state)
            result.append((probability, successor, float(marks[successor] == "G")))
        return result

    return _from_rule(
        len(cells),
        list(moves),
        outcomes,
        discount=discount,
        reward_range=(0.0, 1.0),
        terminal=[mark in "GH" for mark in marks],
        initial_state=marks.index("S"),
        state_names=[f"row {row}, column {column}" for row, column in cells],
    )


def sailing(size: int = 5, discount: float = 0.95) -> TabularModel:
    """Sailing across a lake in shifting wind (after Vanderbei's sailing problem, without the delay of a tack).

    A state is (row, column, direction to which the wind blows); an action is one of eight headings. A leg costs 1 with
    the wind, up to 4 close to it; heading straight into it costs 5 and the boat stands still, as it does at the shore.
    The wind then keeps its direction with probability 0.4 or turns by 45° to either side. The goal is the opposite
    corner.

    Args:
        size: side of the lake.
        discount: γ.
    """
    size = arguments.whole("size", size, least=2, most=math.isqrt(MOST_STATES // len(COMPASS)))
    winds = len(COMPASS)
    costs = (1.0, 2.0, 3.0, 4.0, 5.0)  # by angle to the wind, in steps of 45°: with it, broad, across, close, into it
    places = list(product(range(size), range(size), range(winds)))  # row, column, wind

    def outcomes(state: int, heading: int) -> list[Branch]:
        row, column, wind = places[state]
        apart = min((heading - wind) % winds, (wind - heading) % winds)
        down, right = COMPASS[heading]
        target = (row + down, column + right)
        afloat = apart < winds // 2 and all(0 <= place < size for place in target)
        row, column = target if afloat else (row, column)
        return [
            (probability, (row * size + column) * winds + (wind + turn) % winds, -costs[apart])
            for turn, probability in ((0, 0.4), (1, 0.3), (-1, 0.3))
        ]

    names = ("N", "NE", "E", "SE", "S", "SW", "W", "NW")
    return _from_rule(
        len(places),
        names,
        outcomes,
        discount=discount,
        reward_range=(-costs[-1], -costs[0]),
        terminal=[row == column == size - 1 for row, column, _ in places],
        state_names=[f"row {row}, column {column}, wind to {names[wind]}" for row, column, wind in places],
    )


def inventory(
    capacity: int = 10,
    max_order: int = 5,
    mean_demand: float = 3.0,
    price: float = 1.0,
    unit_cost: float = 0.4,
    holding_cost: float = 0.05,
    discount: float = 0.95,
) -> TabularModel:
    """A shop with lost sales: order 0 to `max_order` units, then meet a Poisson demand as far as the stock goes.

    Args:
        capacity: the most that fits; units that do not fit are neither delivered nor paid.
        max_order: the largest order, so that there are max_order + 1 actions.
        mean_demand: mean of the Poisson demand of a period.
        price: of a unit sold.
        unit_cost: of a unit delivered.
        holding_cost: of a unit left at the end of a period.
        discount: γ.
    """
    capacity = arguments.whole("capacity", capacity, most=math.isqrt(MOST_STATES))
    max_order = arguments.whole("max_order", max_order, most=math.isqrt(MOST_STATES))
    arguments.whole("(capacity + 1)² · (max_order + 1)", (capacity + 1) ** 2 * (max_order + 1), most=10**7)
    mean_demand = arguments.positive("mean_demand", mean_demand)
    price, unit_cost = arguments.number("price", price), arguments.number("unit_cost", unit_cost)
    holding_cost = arguments.number("holding_cost", holding_cost)
    logs = [k * math.log(mean_demand) - mean_demand - math.lgamma(k + 1) for k in range(capacity)]
    demand = [math.exp(log) for log in logs]

    def outcomes(stock: int, order: int) -> list[Branch]:
        delivered = min(order, capacity - stock)
        available = stock + delivered
        sold_out = max(0.0, 1.0 - sum(demand[:available]))
        return [
            (chance, left, price * (available - left) - unit_cost * delivered - holding_cost * left)
            for left, chance in zip(range(available, -1, -1), [*demand[:available], sold_out], strict=True)
        ]

    names = [f"{stock} in stock" for stock in range(capacity + 1)]
    actions = [f"order {order}" for order in range(max_order + 1)]
    return _from_rule(capacity + 1, actions, outcomes, discount=discount, state_names=names)


REBOOT_COST = 0.75
"""Price of a reboot, in running machines (as in the planning competitions)."""


def sysadmin(machines: int = 20, discount: float = 0.95) -> VectorModel:
    """A ring of computers to keep running (Guestrin, Koller, Parr and Venkataraman, 2003): 2^machines states.

    A state is a vector of 0 (down) and 1 (running). Action 0 does nothing, action i reboots machine i − 1, which is
    then running for certain. With u of its two neighbours running, a running machine stays so with probability
    0.45 + 0.5·(1+u)/3, and a machine that is down comes back with probability 0.05·(1+u)/3. The reward is the fraction
    of machines that are running, less 0.75/machines for a reboot.

    Args:
        machines: computers in the ring; 20 make a million states.
        discount: γ.
    """
    machines = arguments.whole("machines", machines, least=3, most=MOST_STATES)
    return VectorModel(
        _sysadmin_step,
        actions=["nothing", *(f"reboot {machine}" for machine in range(machines))],
        discount=discount,
        reward_range=(-REBOOT_COST / machines, 1.0),
        reward_kind="deterministic",
        terminates=False,
        initial_state=np.ones(machines, dtype=np.int8),
    )


def _sysadmin_step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats]:
    machines = states.shape[1]
    connected = (1.0 + np.roll(states, 1, axis=1) + np.roll(states, -1, axis=1)) / 3.0
    survival = np.where(states == 1, 0.45 + 0.5 * connected, 0.05 * connected)
    rebooted = np.arange(1, machines + 1) == actions[:, None]
    running = rebooted | (rng.random(states.shape) < survival)
    rewards = states.mean(axis=1) - REBOOT_COST / machines * (actions > 0)
    return running.astype(states.dtype), rewards


def cart_pole(discount: float = 0.99) -> JitModel:
    """Balancing a pole on a cart (Barto, Sutton and Anderson, 1983), with Gymnasium's constants; compiled.

    A state is (position, velocity, angle, angular velocity). Actions push left or right. Every step is worth 1; the
    episode ends when the cart is 2.4 from the centre or the pole 12° from upright.

    Args:
        discount: γ.
    """
    declared: dict[str, Any] = {"reward_kind": "deterministic", "max_successors": 1, "initial_state": np.zeros(4)}
    return JitModel(cart_pole_step, actions=["left", "right"], discount=discount, reward_range=(1.0, 1.0), **declared)


def mountain_car(discount: float = 0.99) -> JitModel:
    """A car too weak for its hill (Moore, 1990), with Gymnasium's constants; compiled.

    A state is (position, velocity). Actions push left, not at all, or right. Every step costs 1 until the car is at
    the top, 0.5.

    Args:
        discount: γ.
    """
    declared: dict[str, Any] = {"reward_kind": "deterministic", "max_successors": 1, "initial_state": [-0.5, 0.0]}
    names = ["left", "nothing", "right"]
    return JitModel(mountain_car_step, actions=names, discount=discount, reward_range=(-1.0, -1.0), **declared)


Stepped = tuple[States, Floats, NDArray[np.bool_]]


@partial(compiled, allocates=True)
def cart_pole_step(states: States, actions: Ints, rng: np.random.Generator) -> Stepped:
    """Pushes the cart left (0) or right (1); a state is (position, velocity, angle, angular velocity)."""
    gravity, cart_mass, pole_mass, half_length, push, seconds = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
    position_limit, angle_limit = 2.4, 12.0 * math.pi / 180.0
    mass = cart_mass + pole_mass
    next_states = np.empty_like(states)
    terminals = np.empty(len(actions), dtype=np.bool_)
    for row in range(len(actions)):
        position, velocity, angle, spin = states[row]
        force = push if actions[row] == 1 else -push
        sine, cosine = math.sin(angle), math.cos(angle)
        thrust = (force + pole_mass * half_length * spin * spin * sine) / mass
        turning = (gravity * sine - cosine * thrust) / (half_length * (4.0 / 3.0 - pole_mass * cosine * cosine / mass))
        acceleration = thrust - pole_mass * half_length * turning * cosine / mass
        position += seconds * velocity
        angle += seconds * spin
        next_states[row, 0] = position
        next_states[row, 1] = velocity + seconds * acceleration
        next_states[row, 2] = angle
        next_states[row, 3] = spin + seconds * turning
        terminals[row] = abs(position) > position_limit or abs(angle) > angle_limit
    return next_states, np.ones(len(actions)), terminals


@partial(compiled, allocates=True)
def mountain_car_step(states: States, actions: Ints, rng: np.random.Generator) -> Stepped:
    """Pushes the car left (0), not at all (1) or right (2); a state is (position, velocity)."""
    push, slope, top_speed, left_end, right_end, goal = 0.001, 0.0025, 0.07, -1.2, 0.6, 0.5
    next_states = np.empty_like(states)
    terminals = np.empty(len(actions), dtype=np.bool_)
    for row in range(len(actions)):
        position, velocity = states[row]
        velocity += (actions[row] - 1) * push - slope * math.cos(3.0 * position)
        velocity = min(max(velocity, -top_speed), top_speed)
        position = min(max(position + velocity, left_end), right_end)
        if position == left_end and velocity < 0.0:
            velocity = 0.0
        next_states[row, 0] = position
        next_states[row, 1] = velocity
        terminals[row] = position >= goal and velocity >= 0.0
    return next_states, np.full(len(actions), -1.0), terminals
