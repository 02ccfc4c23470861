"""Warm start, candidates on the Pareto front, what to measure next."""
