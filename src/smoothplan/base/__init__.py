"""Argument checks, random streams, compiling on first use, stopping a run."""
