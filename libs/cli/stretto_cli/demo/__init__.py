"""``stretto demo``: a real job from warm start to exact books, told while it happens.

Everything is done by the services themselves. The demonstration only chooses the job, the history that warm start
reads, and the one process that it kills.
"""
