"""Decides the sizes of objects that another controller runs: an elastic Job under Kueue.

``DeciderMachine`` writes a size only while the object is at rest, one patch for each decision, and waits until Kueue
has accepted, refused or overruled that size. ``transition`` derives the answer from what the API server shows,
``quota`` tells for how many more pods there is room, and ``kueue`` reads and writes the objects' JSON.
"""
