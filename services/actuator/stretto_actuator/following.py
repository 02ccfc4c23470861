"""Callbacks for changes of a job's pods."""

from __future__ import annotations

from collections.abc import Callable


class Following:
    """Implements ``Backend.follow``. Use it on the event loop only; a thread calls ``notify`` through the loop.

    ``unfollowed`` is called with a job when its last follower has left.
    """

    def __init__(self, unfollowed: Callable[[str], None] = lambda job: None) -> None:
        self._unfollowed = unfollowed
        self._of: dict[str, list[Callable[[], None]]] = {}

    def add(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call ``changed`` whenever pods of ``job`` may have changed; return the function that ends this."""
        self._of.setdefault(job, []).append(changed)

        def leave() -> None:
            others = self._of[job]
            others.remove(changed)
            if not others:
                del self._of[job]
                self._unfollowed(job)

        return leave

    def __contains__(self, job: object) -> bool:
        return job in self._of

    def notify(self, job: str) -> None:
        """Notify the followers of ``job``: its pods may have changed."""
        for changed in [*self._of.get(job, [])]:
            changed()

    def notify_all(self) -> None:
        """Notify all followers: pods of any job may have changed."""
        for job in [*self._of]:
            self.notify(job)
