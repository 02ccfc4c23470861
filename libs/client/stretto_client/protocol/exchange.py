"""One request and its answer: repetitions, and problems as errors."""

from __future__ import annotations

import json
import math
from typing import Any

from ..errors import ClientError, Finding, NotRunning, Refused, Unreachable, Unusable
from .connection import Answer, Now, Open, Pause, Request, Send, Steps, TransportFault

PATIENCE_S = 60.0
"""Time for which a request is repeated that came too early."""
RETRY_S = 1.0
"""Pause before such a repetition if the answer states none."""
NOT_MODIFIED = 304
CONFLICT = 409
TOO_MANY = 429
_SHOWN = 300
"""Characters of an answer that is none of a gateway, in an error."""


def exchange(request: Request) -> Steps[Answer]:
    """Send a request; return its answer below 400.

    1. A GET whose connection breaks is sent once again: it changes nothing.
    2. A request that is answered 429 (too many requests), or with the problem ``busy`` (another checkpoint is being
       taken), is repeated after the time that the answer states, for ``PATIENCE_S`` in all.

    Raises ClientError.
    """
    try:
        return accepted((yield from answered(Send(request))))
    except TransportFault as fault:
        raise error_of(fault) from fault


def answered(command: Send | Open, until_s: float = math.inf) -> Steps[Answer]:
    """Return the answer to a request, whatever it says, with the repetitions of ``exchange``, none after ``until_s``.

    Raises TransportFault.
    """
    deadline_s = (yield Now()) + PATIENCE_S
    while True:
        answer: Answer = yield from _sent(command)
        if not _comes_too_early(answer):
            return answer
        pause_s = _retry_after_s(answer)
        now_s = yield Now()
        if now_s + pause_s > until_s:
            yield Pause(max(until_s - now_s, 0.0))
            return answer
        if now_s + pause_s > deadline_s:
            return answer
        yield Pause(pause_s)


def accepted(answer: Answer) -> Answer:
    """Return an answer below 400 that leads nowhere else. Raises Refused."""
    if answer.status >= 400:
        raise problem(answer)
    if answer.status >= 300 and answer.status != NOT_MODIFIED:  # a token must not be taken to another host
        to = answer.headers.get("location", "another address")
        text = f"{answer.url} leads on to {to}: give the client the address of the gateway itself"
        raise Refused(answer.status, "foreign", text)
    return answer


def document(request: Request) -> Steps[Any]:
    """Send a request; return the JSON document of its answer. Raises ClientError."""
    answer = yield from exchange(request)
    return document_of(answer)


def document_of(answer: Answer) -> Any:
    """Return the JSON document of an answer. Raises Unusable."""
    try:
        return json.loads(answer.content)
    except ValueError as error:
        shown = answer.content[:_SHOWN].decode(errors="replace")
        raise Unusable(f"the answer is no JSON ({error}): {shown}") from None


def _sent(command: Send | Open) -> Steps[Answer]:
    try:
        return (yield command)
    except TransportFault as fault:
        if isinstance(command, Open) or command.request.method != "GET" or fault.kind in ("nobody", "certificate"):
            raise
    return (yield command)


def error_of(fault: TransportFault) -> ClientError:
    """Return the error for people."""
    if fault.kind == "certificate":
        remedy = "name a file with the certificate of its issuer, as `ca` or in STRETTO_CLI_CA"
        return Unreachable(f"the certificate of the gateway is not trusted ({fault.text}): {remedy}")
    if fault.kind == "nobody":
        return NotRunning(f"no gateway answers ({fault.text}): start it with `stretto up`")
    return Unreachable(f"{fault.text}; see `stretto status`")


def _comes_too_early(answer: Answer) -> bool:
    """Return whether the same request may be accepted in a moment."""
    return answer.status == TOO_MANY or (answer.status == CONFLICT and problem(answer).kind == "busy")


def _retry_after_s(answer: Answer) -> float:
    stated = answer.headers.get("retry-after", "")
    return float(stated) if stated.isdigit() else RETRY_S


def problem(answer: Answer) -> Refused:
    """Return the error of an answer from 400 on, whether or not a gateway gave it. ``page`` is only a path yet."""
    from stretto_wire.rest.problems import URN  # loaded with the first problem: the wire takes its time

    try:
        body: dict[str, Any] = json.loads(answer.content)
        return Refused(
            answer.status,
            str(body["type"]).removeprefix(URN),
            str(body["detail"]),
            findings=[
                Finding(str(one["field"]), str(one["value"]), str(one["remedy"]), one.get("line"), one.get("column"))
                for one in body["errors"]
            ],
            count=int(body["count"]),
            page=str(body.get("help", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError):  # the answer is not from our gateway
        text = answer.content[:_SHOWN].decode(errors="replace")
        return Refused(answer.status, "foreign", f"HTTP {answer.status}: {text}")
