"""Who is to hear of changes in which job's pods."""

from __future__ import annotations

from collections.abc import Callable


class Following:
    """What ``Backend.follow`` promises. On the event loop alone; a thread calls ``tell`` through it.

    ``left`` hears of jobs that nobody follows any more."""

    def __init__(self, left: Callable[[str], None] = lambda job: None) -> None:
        self._left = left
        self._of: dict[str, list[Callable[[], None]]] = {}

    def add(self, job: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Returns what ends it."""
        self._of.setdefault(job, []).append(changed)

        def leave() -> None:
            others = self._of[job]
            others.remove(changed)
            if not others:
                del self._of[job]
                self._left(job)

        return leave

    def __contains__(self, job: object) -> bool:
        return job in self._of

    def tell(self, job: str) -> None:
        """Pods of ``job`` may have changed."""
        for changed in [*self._of.get(job, [])]:
            changed()

    def tell_all(self) -> None:
        """Nobody knows what has changed."""
        for job in [*self._of]:
            self.tell(job)
