"""The subjects of a stream and how many messages each has, by the server's index."""

from __future__ import annotations

from stretto_bus.bus import Bus


async def subject_counts(bus: Bus, stream: str, pattern: str) -> dict[str, int]:
    """Return the number of messages of each subject that ``pattern`` matches. Raises BusFault."""
    counts: dict[str, int] = {}
    while True:  # the server answers with up to 100,000 at once
        asked = {"subjects_filter": pattern, "offset": len(counts)}
        answer = await bus.ask(f"STREAM.INFO.{stream}", asked, timeout_s=30)
        found = answer["state"].get("subjects") or {}
        counts |= found
        if not found or len(counts) >= int(answer.get("total", 0)):
            return counts
