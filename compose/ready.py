#!/opt/stretto/bin/python -IS
"""``stretto-ready``: the health check of an image; exit status 0 when the service in this container says it is ready.

Where it listens, the service has written into its state folder. Nothing is imported but what the question takes: it is
asked every few seconds in every container.
"""

import http.client
import json
import os
import sys
from pathlib import Path


def main() -> str | None:
    """None, or what is wrong."""
    run = Path(os.environ["STRETTO_STATE_FOLDER"], "run")
    where = max(run.glob("*.json"), key=lambda path: path.stat().st_mtime, default=None)
    if where is None:
        return f"nothing listens yet: {run} is empty"
    port = json.loads(where.read_text())["port"]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=8)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
    except OSError as error:
        return f"{where.stem} at port {port}: {error}"
    return None if reply.status == 200 else reply.read(2000).decode(errors="replace")


if __name__ == "__main__":
    sys.exit(main())
