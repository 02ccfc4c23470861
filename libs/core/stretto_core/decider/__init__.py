"""Decides the sizes of objects that another controller runs: an elastic Job under Kueue, a JobSet, a RayCluster.

``DeciderMachine`` writes a size only while the object is at rest, one patch for each decision, and waits until Kueue
or the object's own controller has accepted, refused or overruled that size. ``transition`` derives the answer from
what the API server shows, and ``quota`` tells for how many more pods there is room. At the edge, ``objects`` reads and
writes JSON, ``targets`` has what only one kind of objects has, and ``kueue`` what all have in common under Kueue.
"""
