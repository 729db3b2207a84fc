"""Chunks of a run on threads, processes or a cluster, with checkpoints: the result does not depend on who ran what."""
