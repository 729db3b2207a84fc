"""How a planner runs: `plan`, chunks, workers, checkpoints, progress."""
