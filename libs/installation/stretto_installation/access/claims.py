"""Rights as claims of NATS' tokens: of a user, and of the scope in which a key signs for pods."""

from __future__ import annotations

from collections.abc import Sequence

from stretto_bus.login import Claims

from .permissions import POD_LIMITS, Rights, pod_rights

UNLIMITED = {"subs": -1, "data": -1, "payload": -1}


def user_claims(rights: Rights, tags: Sequence[str] = ()) -> Claims:
    found: Claims = {"type": "user", "version": 2, **UNLIMITED, **_permissions(rights)}
    return found | {"tags": list(tags)} if tags else found


def pod_scope(signing_key: str) -> Claims:
    """The scope that the account binds the signing key to; of a token that it signs, only the tags count."""
    template = _permissions(pod_rights("{{tag(job)}}", "{{tag(pod)}}")) | UNLIMITED | POD_LIMITS
    return {"kind": "user_scope", "key": signing_key, "role": "pod", "template": template}


def _permissions(rights: Rights) -> Claims:
    found: Claims = {"pub": {"allow": list(rights.publish)}, "sub": {"allow": list(rights.subscribe)}}
    if rights.answer_s:
        found["resp"] = {"max": 1, "ttl": int(rights.answer_s * 1e9)}
    return found
