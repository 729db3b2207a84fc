"""A compiled twin of Gymnasium's Acrobot."""

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, Ints
from smoothplan.compiling import compiled
from smoothplan.models.base import States
from smoothplan.models.jit import JitModel


def acrobot(discount: float = 0.99) -> JitModel:
    """Two links to swing up (Sutton, 1996), with Gymnasium's constants; compiled.

    A state is (angle of the first link from straight down, angle of the second from the first, their velocities).
    Actions turn the joint between them backwards, not at all, or forwards. Every step costs 1 until the tip is above
    the bar by the length of a link.

    Args:
        discount: γ.
    """
    return JitModel(
        _acrobot_step,
        actions=3,
        discount=discount,
        reward_range=(-1.0, 0.0),
        reward_kind="deterministic",
        max_successors=1,
        initial_state=np.zeros(4),
    )


@compiled
def _accelerations(torque: float, one: float, two: float, spin_one: float, spin_two: float) -> tuple[float, float]:
    """Of the two angles. Links have mass 1, length 1, their centre of mass in the middle, and moment of inertia 1."""
    gravity = 9.8
    sine, cosine = math.sin(two), math.cos(two)
    inertia, coupling = 3.5 + cosine, 1.25 + 0.5 * cosine
    weight_two = 0.5 * gravity * math.sin(one + two)
    weight_one = 1.5 * gravity * math.sin(one) + weight_two - (0.5 * spin_two + spin_one) * spin_two * sine
    second = torque + coupling / inertia * weight_one - 0.5 * spin_one * spin_one * sine - weight_two
    second /= 1.25 - coupling * coupling / inertia
    return -(coupling * second + weight_one) / inertia, second


@compiled
def _wrapped(angle: float) -> float:
    while angle > math.pi:
        angle -= 2.0 * math.pi
    while angle < -math.pi:
        angle += 2.0 * math.pi
    return angle


@partial(compiled, allocates=True)
def _acrobot_step(states: States, actions: Ints, rng: np.random.Generator) -> tuple[States, Floats, NDArray[np.bool_]]:
    seconds, fastest_one, fastest_two = 0.2, 4.0 * math.pi, 9.0 * math.pi
    next_states = np.empty_like(states)
    rewards = np.empty(len(actions))
    terminals = np.empty(len(actions), dtype=np.bool_)
    for row in range(len(actions)):
        torque = float(actions[row] - 1)
        one, two, spin_one, spin_two = states[row]
        # Runge and Kutta's four slopes of the angles (the velocities) and of the velocities.
        a1, a2 = _accelerations(torque, one, two, spin_one, spin_two)
        half = seconds / 2.0
        u1, u2 = spin_one + half * a1, spin_two + half * a2
        b1, b2 = _accelerations(torque, one + half * spin_one, two + half * spin_two, u1, u2)
        v1, v2 = spin_one + half * b1, spin_two + half * b2
        c1, c2 = _accelerations(torque, one + half * u1, two + half * u2, v1, v2)
        w1, w2 = spin_one + seconds * c1, spin_two + seconds * c2
        d1, d2 = _accelerations(torque, one + seconds * v1, two + seconds * v2, w1, w2)
        sixth = seconds / 6.0
        one = _wrapped(one + sixth * (spin_one + 2.0 * u1 + 2.0 * v1 + w1))
        two = _wrapped(two + sixth * (spin_two + 2.0 * u2 + 2.0 * v2 + w2))
        spin_one += sixth * (a1 + 2.0 * b1 + 2.0 * c1 + d1)
        spin_two += sixth * (a2 + 2.0 * b2 + 2.0 * c2 + d2)
        next_states[row, 0] = one
        next_states[row, 1] = two
        next_states[row, 2] = min(max(spin_one, -fastest_one), fastest_one)
        next_states[row, 3] = min(max(spin_two, -fastest_two), fastest_two)
        terminals[row] = -math.cos(one) - math.cos(one + two) > 1.0
        rewards[row] = 0.0 if terminals[row] else -1.0
    return next_states, rewards, terminals
