"""Decisions: `decide`, `Agent`, `act`, `compare`, and the race between actions."""
