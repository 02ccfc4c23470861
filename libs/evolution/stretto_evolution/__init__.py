"""Evolutionary algorithms by pymoo, as plug-ins of core's decisions; loaded only when one is chosen."""
