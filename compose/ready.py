#!/opt/stretto/bin/python -IS
"""``stretto-ready``: the health check of an image; exit status 0 if the service in this container is ready.

The service writes its address into its state folder. This script imports as little as possible, because it runs every
few seconds in every container.
"""

import http.client
import json
import os
import sys
from pathlib import Path


def main() -> str | None:
    """Return None, or the reason why the service is not ready."""
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
