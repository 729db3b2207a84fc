"""The explored graph: states, pairs, confidence sets, bounds, and walks that extend it."""
