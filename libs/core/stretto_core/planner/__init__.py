"""Proposes plans for one job: warm start, exploration, Pareto candidates."""
