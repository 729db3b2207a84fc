"""Planning by bounds: OT-GapE, MDP-GapE, and the baseline UCT."""
