"""Known vulnerabilities of the pinned packages, by pip-audit; or the reason why it could not be asked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.supply_chain.pins import read

PATIENCE_S = 600
AWAY = re.compile(r"Connection|Timeout|Proxy|SSL|ServiceError|HTTPError|HTTP error", re.IGNORECASE)
"""in the last words of a pip-audit whose service is away; every other end is a defect"""


@dataclass(frozen=True, slots=True)
class Audit:
    """``findings``: a line for each vulnerability. ``unasked``: why nothing is known; empty: it is."""

    packages: int = 0
    findings: tuple[str, ...] = ()
    unasked: str = ""


def audit(constraints: Path, osv_url: str | None = None, timeout_s: int = 15) -> Audit:
    """Ask about every pin. ``osv_url``: another service of Open Source Vulnerabilities than pip-audit knows.

    Raises RuntimeError when pip-audit fails for another reason than a service that is away.
    """
    pins = [f"{pin.name}=={pin.version}" for pin in read(constraints).values()]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins) + "\n")
        file.flush()
        command = [sys.executable, "-m", "pip_audit", "-r", file.name, "--no-deps", "--disable-pip"]
        command += ["-s", "osv", "--format", "json", "--progress-spinner", "off", "--timeout", str(timeout_s)]
        command += ["--osv-url", osv_url] if osv_url else []
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired:
            return Audit(unasked=f"the service of vulnerabilities did not answer within {PATIENCE_S} s")
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = (done.stderr.strip().splitlines() or [""])[-1]
        if not AWAY.search(said):
            raise RuntimeError(f"pip-audit ended with {done.returncode}: {said[:1000]}") from None
        return Audit(unasked=f"the service of vulnerabilities cannot be asked: {said[:300]}")
    passed = [each["name"] for each in found if "skip_reason" in each]
    if passed:
        return Audit(unasked=f"nothing is known of {', '.join(passed)}")
    lines = [
        f"{each['name']} {each['version']}: {one['id']}, mended in {', '.join(one['fix_versions']) or 'no version yet'}"
        for each in found
        for one in each["vulns"]
    ]
    return Audit(len(found), tuple(lines))
