"""Playing Gymnasium environments: random actions, the first reference's own best actions, and planning at every step.

    python benchmarks/playing.py [--episodes 1.0] [--seed 0] [NAME ...]

prints a table of mean returns with standard errors. The second column plays the reference as it was made before the
first step, never improved; the third is `sp.act` with its default settings, or around a reference that is made worse on
purpose. Episodes of one environment have the same seeds in all columns, as far as there are.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import smoothplan as sp
from smoothplan.chains.grid import GridReference
from smoothplan.decide.agent import episode_seed
from smoothplan.decide.unregularised import smooth_backup
from smoothplan.models.gymnasium import Player

MAX_STEPS = 1000


@dataclass(frozen=True)
class Game:
    """An environment, and how it is played."""

    name: str
    episodes: int  # with planning; the others are cheap and get `CHEAP` times as many
    options: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    coarse: int | None = None  # cells along each axis of a coarse grid, for the reference
    note: str = "default"


CHEAP = 4

GAMES = [
    Game("FrozenLake-v1", 300, {"map_name": "8x8"}),
    Game("FrozenLake-v1", 300, {"map_name": "8x8"}, {"reference_calls": 20_000}, note="20,000 calls"),
    Game("Taxi-v4", 100),
    Game("CliffWalking-v1", 20, {"is_slippery": True}, note="default, slippery"),
    Game("CartPole-v1", 10),
    Game("CartPole-v1", 20, coarse=4, note="grid of 4 cells an axis"),
    Game("MountainCar-v0", 20),
    Game("MountainCar-v0", 20, coarse=10, note="grid of 10 cells an axis"),
    Game("Acrobot-v1", 20),
]


def main() -> None:
    """Plays and prints."""
    parser = argparse.ArgumentParser(description="Mean returns of random play, of a reference, and of planning.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="environments; all by default")
    parser.add_argument("--episodes", type=float, default=1.0, help="times as many episodes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print("| environment | reference | random | reference alone | planning | sure? | deviations | ms/step |")
    print("|---|---|---|---|---|---|---|---|")
    for game in GAMES:
        if not arguments.names or game.name in arguments.names:
            print(row(game, max(2, int(arguments.episodes * game.episodes)), arguments.seed), flush=True)


def row(game: Game, episodes: int, seed: int) -> str:
    """A row of the table."""
    play = player_of(game, seed)
    planned = play(episodes=episodes)
    alone = play(episodes=CHEAP * episodes, calls=0)
    noise = random_scores(game, CHEAP * episodes, seed)
    error = np.hypot(standard_error(planned.scores), standard_error(alone.scores))
    gain = planned.mean - alone.mean
    sure = "tie" if gain == 0.0 or abs(gain) < 2.0 * error else f"{gain / error:+.1f} se" if error else "yes"
    steps = sum(episode.steps for episode in planned.episodes)
    deviations = sum(episode.deviations for episode in planned.episodes) / steps
    speed = 1e3 * sum(episode.seconds for episode in planned.episodes) / steps
    cells = [shown(scores) for scores in (noise, alone.scores, planned.scores)]
    return f"| {game.name} | {game.note} | {' | '.join(cells)} | {sure} | {deviations:.1%} | {speed:.0f} |"


def player_of(game: Game, seed: int) -> Callable[..., sp.ActResult]:
    """Plays a game around its reference."""

    def play(**settings: Any) -> sp.ActResult:
        reference = None
        if game.coarse is not None:
            model = sp.models.from_gymnasium(game.name, **game.options)
            reference = GridReference.build(model, smooth_backup(model), cells=game.coarse, seed=seed)
        return sp.act(game.name, reference=reference, seed=seed, **settings, **game.settings, **game.options)

    return play


def random_scores(game: Game, episodes: int, seed: int) -> Any:
    """Returns of random actions, [E]."""
    model = sp.models.from_gymnasium(game.name, **game.options)
    player, rng = Player(game.name, model, **game.options), np.random.default_rng(seed)
    scores = np.zeros(episodes)
    for number in range(episodes):
        player.reset(episode_seed(seed, number))
        for _ in range(MAX_STEPS):
            reward, terminated, truncated = player.move(int(rng.integers(model.actions)))
            scores[number] += reward
            if terminated or truncated:
                break
    return scores


def standard_error(scores: Any) -> float:
    """Of the mean."""
    return float(np.std(scores, ddof=1) / np.sqrt(len(scores)))


def shown(scores: Any) -> str:
    """A mean and its standard error."""
    return f"{np.mean(scores):.4g} ± {standard_error(scores):.2g} ({len(scores)})"


if __name__ == "__main__":
    main()
