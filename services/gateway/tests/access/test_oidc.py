"""JSON Web Tokens of a real issuer on loopback: only its own, for us, now, signed by a key that it publishes."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from stretto_gateway.access import oidc
from stretto_gateway.access.callers import Caller
from stretto_gateway.access.oidc import Issuer
from stretto_gateway.problems import Problem
from stretto_gateway.settings import GatewaySettings
from stretto_runtime.process.faults import SettingsFault

from tests.http_served import Answer, Asked, served

from ..gateway_process import installed
from ..rest_documents import problem, spec
from .test_callers import Clock

AUDIENCE = "stretto"


class Provider:
    """Publishes its keys, counts how often they are fetched, and signs."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.extra: list[Any] = []
        self.fetched = 0
        self.broken = False
        self.awake = threading.Event()
        self.awake.set()
        self.url = ""

    def answer(self, asked: Asked) -> Answer:
        self.awake.wait(60)
        body: dict[str, Any] = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        if asked.path == "/keys":
            self.fetched += 1
            body = {"keys": [*map(self.public, self.keys), *self.extra]}
        return 500 if self.broken else 200, {}, json.dumps(body).encode()

    def public(self, kid: str) -> dict[str, Any]:
        kinds = {"R": jwt.algorithms.RSAAlgorithm, "E": jwt.algorithms.ECAlgorithm, "O": jwt.algorithms.OKPAlgorithm}
        kind = {"RS256": "R", "ES256": "E", "EdDSA": "O"}[ALGORITHM_OF[type(self.keys[kid])]]
        return {**kinds[kind].to_jwk(self.keys[kid].public_key(), as_dict=True), "kid": kid, "use": "sig"}

    def sign(self, kid: str = "one", key: Any = None, **claims: Any) -> str:
        key = key or self.keys[kid]
        body = {"iss": self.url, "aud": AUDIENCE, "sub": "ada", "roles": ["submitter"], "exp": time.time() + 60}
        body = {name: value for name, value in {**body, **claims}.items() if value is not None}
        return jwt.encode(body, key, ALGORITHM_OF[type(key)], {"kid": kid})


RSA = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
ALGORITHM_OF = {type(RSA): "RS256", type(EC): "ES256", type(ED): "EdDSA"}


@pytest.fixture
def provider() -> Iterator[Provider]:
    provider = Provider()
    provider.keys["one"] = RSA
    with served(provider.answer) as provider.url:
        yield provider
        provider.awake.set()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def issuer(provider: Provider, clock: Clock, **more: Any) -> Issuer:
    return Issuer(GatewaySettings(oidc_issuer=provider.url, oidc_audience=AUDIENCE, **more), clock)


async def refused(issuer: Issuer, token: str) -> Problem:
    with pytest.raises(Problem) as caught:
        await issuer.caller(token)
    return caught.value


@pytest.mark.parametrize("key", [RSA, EC, ED], ids=["RS256", "ES256", "EdDSA"])
async def test_a_good_token_names_its_bearer_and_the_role(provider: Provider, clock: Clock, key: Any) -> None:
    provider.keys["one"] = key
    assert await issuer(provider, clock).caller(provider.sign()) == Caller("oidc:ada", "submitter")


async def test_what_is_wrong_with_a_token_is_a_reason_to_refuse_it(provider: Provider, clock: Clock) -> None:
    known = issuer(provider, clock)
    await known.caller(provider.sign())
    good = jwt.decode(provider.sign(), options={"verify_signature": False})
    bad = {
        "issuer": provider.sign(iss="https://another.example"),
        "audience": provider.sign(aud="another"),
        "expired": provider.sign(exp=time.time() - 60),
        "not yet valid": provider.sign(nbf=time.time() + 600),
        "no expiry": provider.sign(exp=None),
        "no subject": provider.sign(sub=None),
        "another's key": provider.sign(key=OTHER),
        "no algorithm": jwt.encode(good, None, "none", {"kid": "one"}),
        "the public key as a shared secret": signed_with_the_public_key(good),
        "no token": "a.b.c",
        "cut": provider.sign()[:-8],
    }
    for what, token in bad.items():
        told = await refused(known, token)
        assert (told.status, told.headers["WWW-Authenticate"]) == (401, 'Bearer error="invalid_token"'), what
    assert provider.fetched == 1


def signed_with_the_public_key(claims: dict[str, Any]) -> str:
    """Return a forged token that a library accepts if it lets the token choose the algorithm."""
    public = RSA.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    parts = [json.dumps(part).encode() for part in ({"alg": "HS256", "typ": "JWT", "kid": "one"}, claims)]
    signed = b".".join(base64.urlsafe_b64encode(part).rstrip(b"=") for part in parts)
    mac = base64.urlsafe_b64encode(hmac.digest(public, signed, "sha256")).rstrip(b"=")
    return (signed + b"." + mac).decode()


async def test_a_shared_key_among_the_issuers_is_not_believed(provider: Provider, clock: Clock) -> None:
    provider.extra = [{"kty": "oct", "kid": "shared", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"}]
    secret = b"secret-secret-secret-secret-secret"
    claims = {"iss": provider.url, "aud": AUDIENCE, "sub": "eve", "roles": ["admin"], "exp": time.time() + 60}
    forged = jwt.encode(claims, secret, "HS256", {"kid": "shared"})
    assert (await refused(issuer(provider, clock), forged)).status == 401


async def test_keys_that_change_are_fetched_again_and_not_at_a_strangers_pace(provider: Provider, clock: Clock) -> None:
    known = issuer(provider, clock)
    await known.caller(provider.sign())
    provider.keys["two"] = OTHER
    for _ in range(50):  # names a key that is not there: one fetch at most every ten seconds
        await refused(known, provider.sign("three", key=OTHER))
    assert provider.fetched == 1
    clock.now += oidc.RETRY_S + 1
    assert await known.caller(provider.sign("two")) == Caller("oidc:ada", "submitter")
    assert provider.fetched == 2
    del provider.keys["one"]  # withdrawn: not good any more once the keys are old
    clock.now += oidc.REFRESH_S + 1
    assert (await refused(known, provider.sign("one", key=RSA))).status == 401


async def test_an_issuer_that_is_away_is_done_without_for_a_while(provider: Provider, clock: Clock) -> None:
    known = issuer(provider, clock)
    provider.broken = True
    assert (await refused(known, provider.sign())).status == 503
    provider.broken = False
    clock.now += oidc.RETRY_S + 1
    await known.caller(provider.sign())
    provider.broken = True
    clock.now += oidc.STALE_S / 2
    await known.caller(provider.sign())
    clock.now += oidc.STALE_S
    assert (await refused(known, provider.sign())).status == 503


async def test_two_long_names_are_not_taken_for_one(provider: Provider, clock: Clock) -> None:
    known = issuer(provider, clock)
    assert (await known.caller(provider.sign(sub="a" * 195))).name == "oidc:" + "a" * 195
    assert "longer than 195" in (await refused(known, provider.sign(sub="a" * 195 + "b"))).detail


async def test_a_claim_names_the_team_and_a_token_without_it_is_refused(provider: Provider, clock: Clock) -> None:
    assert (await issuer(provider, clock).caller(provider.sign(org="x"))).team == "default"
    known = issuer(provider, clock, oidc_team_claim="org.team")
    assert (await known.caller(provider.sign(org={"team": "ads"}))).team == "ads"
    for claims in ({}, {"org": "ads"}, {"org": {"team": "Ads Ltd"}}, {"org": {"team": ["ads"]}}):
        problem = await refused(known, provider.sign(**claims))
        assert (problem.status, problem.kind, problem.field) == (403, "no-team", "org.team")


async def test_an_issuer_that_hangs_is_waited_for_once_by_who_is_known(
    provider: Provider, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = issuer(provider, clock)
    await known.caller(provider.sign())
    provider.awake.clear()
    monkeypatch.setattr(oidc, "FETCH_S", 0.2)
    clock.now += oidc.REFRESH_S + 1
    await known.caller(provider.sign())
    monkeypatch.setattr(oidc, "FETCH_S", 50.0)
    clock.now += oidc.RETRY_S + 1
    async with asyncio.timeout(60):
        await known.caller(provider.sign())
    provider.awake.set()
    provider.keys["two"] = OTHER
    clock.now += oidc.RETRY_S + 1
    assert await known.caller(provider.sign("two")) == Caller("oidc:ada", "submitter")


async def test_keys_of_kinds_that_nobody_here_knows_are_passed_over(provider: Provider, clock: Clock) -> None:
    provider.extra = [{"kty": "OKP", "crv": "X25519", "kid": "x", "x": "AA"}, {"kty": "EC", "crv": "P-999"}, "text"]
    assert (await issuer(provider, clock).caller(provider.sign())).name == "oidc:ada"


@pytest.mark.parametrize(
    ("claims", "settings", "role"),
    [
        ({"roles": "viewer submitter"}, {}, "submitter"),
        ({"roles": ["other", "admin", "viewer"]}, {}, "admin"),
        ({"realm_access": {"roles": ["viewer"]}}, {"oidc_role_claim": "realm_access.roles"}, "viewer"),
        ({"roles": ["ml-team"]}, {"oidc_roles": {"ml-team": "submitter"}}, "submitter"),
        ({"roles": ["admin"]}, {"oidc_roles": {"ml-team": "submitter"}}, None),
        ({"roles": [["admin"], 1, None]}, {}, None),
        ({"roles": None}, {}, None),
    ],
)
async def test_the_role_is_what_the_claim_says(
    provider: Provider, clock: Clock, claims: dict[str, Any], settings: dict[str, Any], role: str | None
) -> None:
    known = issuer(provider, clock, **settings)
    if role is None:
        assert (await refused(known, provider.sign(**claims))).status == 403
    else:
        assert (await known.caller(provider.sign(**claims))).role == role


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"oidc_issuer": "https://id.example"}, "OIDC_AUDIENCE"),
        ({"oidc_issuer": "http://id.example", "oidc_audience": "a"}, "https"),
        ({"oidc_issuer": "https://b.example", "oidc_audience": "a", "oidc_jwks_url": "http://b.example"}, "JWKS_URL"),
    ],
)
def test_settings_that_would_let_strangers_in_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsFault, match=words):
        Issuer(GatewaySettings(**settings), time.monotonic)


def test_a_gateway_knows_the_bearers_of_its_issuer(provider: Provider, tmp_path: Path) -> None:
    settings = {"OIDC_ISSUER": provider.url, "OIDC_AUDIENCE": AUDIENCE}
    with installed(tmp_path, {f"STRETTO_GATEWAY_{name}": value for name, value in settings.items()}) as running:

        def call(token: str) -> httpx.Client:
            headers = {"Authorization": f"Bearer {token}"}
            return httpx.Client(base_url=f"{running.url}/api/v1", headers=headers, timeout=60, trust_env=False)

        document = spec()
        with call(provider.sign()) as ada, call(provider.sign(sub="bob")) as bob:
            assert ada.post("/jobs", json=document).status_code == 201
            assert ada.get(f"/jobs/{document['name']}").json()["submitted_by"] == "oidc:ada"
            assert problem(bob.delete(f"/jobs/{document['name']}"))["type"].endswith("not-yours")
        with call(provider.sign(aud="another")) as stranger:
            assert stranger.get("/jobs").status_code == 401
        with running.http() as own:
            assert own.delete(f"/jobs/{document['name']}").status_code == 202
