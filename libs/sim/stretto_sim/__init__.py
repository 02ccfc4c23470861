"""Whole clusters in a second: the decisions of ``stretto_core`` on traces of jobs. No clock, no file, no socket."""
