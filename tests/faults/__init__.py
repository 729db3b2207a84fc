"""Faults on purpose: `python -m tests.faults` kills processes and compares with undisturbed runs."""
