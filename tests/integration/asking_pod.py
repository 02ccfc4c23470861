"""A pod without TensorFlow that requests its servers repeatedly and records the replies.

``REPORT`` names a file: a line of JSON for each answered request. It has a hash of the secret ``JOB_CANARY``, which the
pod has if its job names that secret.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

from stretto.pod.process import Pod, run_pod
from stretto_messages.actuator import GetServers, GetServersReply
from stretto_messages.pods import ClaimBuckets, ClaimBucketsReply

PAUSE_S = 0.01


def ask(pod: Pod) -> int:
    claimed = ClaimBucketsReply(job=pod.settings.job, accepted=True)
    pod.bus.serve(ClaimBuckets, lambda _: claimed)
    pod.ready("127.0.0.1:9000")
    secret = hashlib.sha256(os.environ.get("JOB_CANARY", "").encode()).hexdigest()
    with Path(os.environ["REPORT"]).open("a", buffering=1) as report:
        while not pod.leaving.wait(PAUSE_S):
            began_s = time.monotonic()
            number = pod.bus.request_id(GetServers)
            request = GetServers(job=pod.settings.job, request_id=number, pod=pod.settings.pod)
            reply = pod.bus.call(request, GetServersReply)
            line = {"answer": reply.answer, "took_s": time.monotonic() - began_s, "number": number}
            report.write(json.dumps({**line, "ends_s": pod.bus.credentials_end_s, "secret": secret}) + "\n")
    return 0


run_pod(os.environ["STRETTO_POD"].partition("-")[0], ask)
