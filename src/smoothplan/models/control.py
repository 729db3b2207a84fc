"""Compiled steps of three classic control problems, with Gymnasium's constants: see `zoo` for the models.

Each step takes states [n, d], actions [n] and a generator, from which it draws nothing, and returns next states [n, d],
rewards [n] and terminals [n].
"""

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from smoothplan.arguments import Floats, Ints
from smoothplan.compiling import compiled
from smoothplan.models.base import States

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


@compiled
def _accelerations(torque: float, one: float, two: float, spin_one: float, spin_two: float) -> tuple[float, float]:
    """The accelerations of the angles. Links have mass, length and moment of inertia 1, their mass centred."""
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
def acrobot_step(states: States, actions: Ints, rng: np.random.Generator) -> Stepped:
    """Turns the middle joint by action − 1; a state is (two angles, their velocities)."""
    seconds, fastest_one, fastest_two = 0.2, 4.0 * math.pi, 9.0 * math.pi
    next_states = np.empty_like(states)
    rewards = np.empty(len(actions))
    terminals = np.empty(len(actions), dtype=np.bool_)
    for row in range(len(actions)):
        torque = float(actions[row] - 1)
        one, two, spin_one, spin_two = states[row]
        # Runge–Kutta: four slopes of the angles (the velocities) and of the velocities (the accelerations).
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
