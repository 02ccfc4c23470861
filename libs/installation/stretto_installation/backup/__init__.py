"""Backup of an installation's streams while its services run, and their restoration into an empty server.

A backup is a folder: one file for each stream, one for the bucket, and ``manifest.json``, which is written last and
holds the SHA-256 of each. The bucket is read message by message, up to a message after which nothing was pending
(``entries``). The other streams are the server's own snapshots (``stretto_bus.reading.stream_snapshot``), with their
sequences, times, subjects, headers and lifetimes.

**Why several streams make one consistent point.** An effect is saved before its cause (``manifest.in_order``):

1. The bucket, at the moment m. A document and a cursor are stored after the inputs that they contain and after the
   outputs of these. So nothing in the bucket refers to a message that was stored after m.
2. The dead letters, after m: each was stored after the input that it is about, which is in the log below.
3. The log, at a moment L >= m. It holds every input that a cursor of m contains, and every output of those.
4. Other streams of inputs, if there are any: whatever the log tells about has its input there.

A restored partition is that of an owner that died at L, and whose last snapshot is the one of m. That is the case that
every takeover handles: the successor replays from the cursor to its own fence and leaves out what was published since,
by id. Two things of the bucket would say otherwise, so they are changed (``entries.restored``):

- Entries of members and owners are leases of processes of the old installation. They are left out, so nobody is waited
  for.
- A mark of a clean shutdown says that nothing was handled after the cursor. Between m and L an owner may have begun, so
  no restored mark is clean. The successor then finishes, under the settings of their terms, inputs that this owner may
  have decided.

Entries of the bucket get new revisions, in the old order. Nothing else refers to a revision: it is an epoch of an owner
entry or the order of two sides. The new ones begin ``entries.REVISIONS_AHEAD`` above the last of the backup, so a
replica of the old installation never holds an epoch that a new owner has: the server refuses its snapshots.

Inputs between cursor and L have a lifetime (telemetry an hour, journals a day). A backup that is restored later lacks
those: what was published of them stays, and what services remembered of them is lost, about the last second before the
backup. The manifest says until when it is complete, and a later restoration has to be asked for.

A restoration leaves a record in the bucket (``stretto_runtime.restorations``), by which an audit names it.
"""

from .manifest import Manifest
from .restoring import EXPIRED, Restored, read_back, restore
from .taking import UNREADABLE, take

__all__ = ["EXPIRED", "UNREADABLE", "Manifest", "Restored", "read_back", "restore", "take"]
