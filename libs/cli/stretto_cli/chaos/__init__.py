"""``stretto chaos``: a real job under a seeded schedule of real faults, and what became of it.

The faults are real: signals to real processes, files really damaged, caches really emptied. What is told of their
effect is read from the job's own events and from the parameter servers' own count; nothing is taken on trust.
"""
