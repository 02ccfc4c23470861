"""Genetic algorithms by pymoo: candidates on the front, and placements of layers."""
