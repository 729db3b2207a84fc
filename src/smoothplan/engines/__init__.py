"""Engines: two interpreters of one table. `compiled` is for tables of transitions, `batched` for any simulator."""
