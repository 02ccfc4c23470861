"""The keys of one installation: one folder per user. Existing keys are kept; missing ones are added.

``root/`` vouches for everybody else and belongs on no machine that runs anything. ``server/`` is public except for the
key of its certificate. Every other folder bears its owner's name and goes to nobody else.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from stretto_bus.faults import IdentityFault
from stretto_bus.login import Claims, Login, claims_of
from stretto_bus.reading.servers import SERVERS
from stretto_runtime.access.identity import ACCOUNT_KEY, OPERATOR_KEY, USER_KEY, Key, credentials, parts_of, pods_tag
from stretto_wire.contract.registry import OPERATOR, POD_ANSWER_S, STREAM, USERS

from . import certificates
from .certificates import Certificate
from .claims import pod_scope, user_claims
from .permissions import (
    POD_LIMITS,
    RPC_MAPPING,
    Rights,
    counter_rights,
    external_rights,
    keeper_rights,
    pods_read,
    pods_send,
    rights_of,
    watcher_rights,
)
from .tool_accounts import (
    COMMON,
    COMMON_SEED,
    CONSUME,
    EXTERNAL_DELIVERY,
    NO_LIMITS,
    Account,
    account_of_tool,
    common_account,
    name_of,
    notice_of_common,
    notice_of_move,
    seed_of,
    tools_in,
)

ROOT = "root"
SERVER = "server"
ACTUATOR = "actuator"
EXTERNAL = "external"
KEEPER = "external-keeper"
"""User that makes the stream of events of each tool outside; its folder has a file of credentials for each tool."""
SUPERVISOR = "supervisor"
"""User that asks the server of one machine whether it can store."""
RESERVED = frozenset((*USERS, ROOT, SERVER, KEEPER, SUPERVISOR, "bus"))

CREDENTIALS_FILE = "bus.creds"
COUNTER_FILE = "connections.creds"
"""The actuator's second file of credentials: it counts the connections of each pod, and cuts those beyond its share."""
SIGNING_FILE = "pods.seed"
TRUST_FILE = "trust.conf"
REVOKED_FILE = "revoked.json"
"""File in ``root/``: without it, revoked keys would be valid in a new server file."""
CA_FILE = "ca.crt"

_STORING = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1, "max_ack_pending": -1}
_PODS = "pods"
_SERVERS = {"name": "servers", "subject": SERVERS, "type": "service"}
POD_CONNECTIONS = 20_000
"""Connections of all pods, where the server has descriptors for them: 10,000 pods with one each, and as many broken
connections that the server still counts."""

_FROM_PODS = "*.v1.>"
"""The one service that pods import, by subjects of the registry.

The server drops an answer that a pod has directed to another import of the same service: it takes it for a cycle. Of
two services, the acknowledgement of the one could become a request to the other.
"""
_SERVICE_ANSWER_S = 10.0
"""Time that the server keeps the way back to a pod for an answer. A pod asks again after ``caller.ATTEMPT_S``."""

_REVOKED = TypeAdapter(dict[str, dict[str, int]])


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, from its first byte on; whole or not at all."""
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def sync(paths: Iterable[Path]) -> None:
    """Sync files and folders to the disk: from here on they outlive a loss of power."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Keys:
    """All keys in ``folder`` that ``USERS`` and ``external`` need; ``made`` lists the new files.

    New files are on the disk before the constructor returns: with lost keys nobody could read the streams again.
    Existing keys stay. Only tokens whose rights have changed are signed again, for the same keys. ``notices`` says what
    changes for a tool that had to move to an account of its own.

    ``hosts`` are names and addresses of the server, if it gets a certificate of our own authority. Users in ``revoked``
    get new keys; a server that has read the new trust file refuses the old ones. ``pod_connections`` is the most that
    all pods may have together.

    Raises:
        IdentityFault: a file there is not what its name says, one of ``root/`` is missing, or a name cannot be one.
    """

    def __init__(
        self,
        folder: Path,
        now: float,
        external: Sequence[str] = (EXTERNAL,),
        hosts: Sequence[str] = (),
        revoked: Sequence[str] = (),
        pod_connections: int = POD_CONNECTIONS,
    ) -> None:
        self.folder = folder
        self.made: list[Path] = []
        self.notices: list[str] = []
        self._now = now
        self._revoking = revoked
        external = [*dict.fromkeys((*external, *(name for name in revoked if name not in (*USERS, KEEPER))))]
        self._check(external, hosts)
        founded = [place.parent for place in (folder, *folder.parents) if not place.exists()]
        operator = self._root("operator", OPERATOR_KEY)
        system, stretto = (self._root(name, ACCOUNT_KEY) for name in ("system", "stretto"))
        pods = self._late_root(_PODS, "PODS")
        known = {*external, *tools_in(folder / ROOT, self._trusted_names())}
        tools = {name: self._late_root(seed_of(name), name_of(name)) for name in sorted(known)}
        signing = self._key(self.signing_file, ACCOUNT_KEY)
        self._revoked = self._all_revoked()
        self.pods_account = pods.public
        """Public key of the account that pods log in to."""
        for user in USERS:
            tags = [pods_tag(pods.public)] if user == ACTUATOR else []
            self._user(stretto, user, rights_of(user), tags)
        counter = counter_rights(pods.public, ACTUATOR)
        self._user(system, ACTUATOR, counter, [pods_tag(pods.public)], self.counter_file)
        self._user(system, SUPERVISOR, watcher_rights(SUPERVISOR))
        for name, account in tools.items():
            self._user(account, name, external_rights(name))
            self._user(account, KEEPER, keeper_rights(KEEPER), file=self.keeper_folder / f"{name}.creds")
        accounts = {
            system.public: ("SYSTEM", NO_LIMITS, {"exports": [_SERVERS | {"response_type": "Stream"}]}),
            stretto.public: ("STRETTO", NO_LIMITS | _STORING, _own(pods.public, system.public)),
            pods.public: (
                "PODS",
                NO_LIMITS | POD_LIMITS | {"conn": pod_connections, "leaf": 0},
                _of_pods(stretto.public, signing.public),
            ),
            **{key.public: account_of_tool(name, stretto.public) for name, key in tools.items()},
            **self._common(stretto),
        }
        self.trust = self._trust(operator, system.public, accounts)
        """The trust section of the server's configuration."""
        if hosts:
            self._certify(hosts, (SERVER, *USERS, KEEPER, *tools))
        if self.made:
            sync((*self.made, *{path.parent for path in self.made}, folder, *founded))

    @property
    def signing_file(self) -> Path:
        """The seed that signs pods' credentials; the scope of the account PODS limits it to the rights of pods."""
        return self.folder / ACTUATOR / SIGNING_FILE

    @property
    def counter_file(self) -> Path:
        """Credentials of the actuator in the server's own account: to count connections of pods, and to cut them."""
        return self.folder / ACTUATOR / COUNTER_FILE

    @property
    def certificate(self) -> Certificate:
        """The files of the server's certificate."""
        return Certificate(*(self.folder / SERVER / name for name in ("server.crt", "server.key", CA_FILE)))

    @property
    def certificate_ends_s(self) -> float | None:
        """End of the server's certificate, if our authority issued it. Raises IdentityFault."""
        file = self.certificate.file
        if not (self.folder / ROOT / CA_FILE).exists() or not file.exists():
            return None
        try:
            return certificates.end_of(file.read_text())
        except IdentityFault as fault:
            raise IdentityFault(f"{file}: {fault}; `keys` with --tls makes another one") from None

    def credentials(self, user: str) -> Path:
        return self.folder / user / CREDENTIALS_FILE

    @property
    def keeper_folder(self) -> Path:
        """The folder with credentials that make the stream of events in the account of each tool outside."""
        return self.folder / KEEPER

    def login(self, user: str = OPERATOR) -> Login:
        ca = self.folder / user / CA_FILE
        return Login(user, credentials=self.credentials(user), ca=ca if ca.exists() else None)

    def _check(self, external: Sequence[str], hosts: Sequence[str]) -> None:
        """Check all names before anything is made: a bad one must not leave the others half done."""
        for name in external:
            _check_external_name(name)
        for name in self._revoking:
            file = self.keeper_folder if name == KEEPER else self.credentials(name)
            if not file.exists():
                raise IdentityFault(f"--revoke {name!r}: {file} is missing, which says what key to revoke; put it back")
        if not hosts:  # else another one is made of it
            _ = self.certificate_ends_s

    def _root(self, name: str, kind: int) -> Key:
        """A root key. A new one under the same name would invalidate every key and lose access to the streams."""
        path, trust = self.folder / ROOT / f"{name}.seed", self.folder / SERVER / TRUST_FILE
        if trust.exists() and not path.exists():
            raise IdentityFault(
                f"{path} is missing, while {trust} says that there was one: put {ROOT}/ back from where it is kept, or "
                f"remove {trust} to begin anew, with new keys for everybody and without the streams that are there"
            )
        return self._key(path, kind)

    def _late_root(self, name: str, account: str) -> Key:
        """The key of an account that folders of former versions, or from before its tool, lack."""
        if account in self._trusted_names():
            return self._root(name, ACCOUNT_KEY)
        return self._key(self.folder / ROOT / f"{name}.seed", ACCOUNT_KEY)

    def _trusted_names(self) -> set[str]:
        return {str(claims_of(token)["name"]) for token in self._trusted().values()}

    def _common(self, stretto: Key) -> dict[str, Account]:
        """The account that all tools shared in former versions, as it is, until its seed is removed."""
        seed = self.folder / ROOT / COMMON_SEED
        token = next((token for token in self._trusted().values() if claims_of(token)["name"] == COMMON), "")
        if not token and not seed.exists():
            return {}
        (self.keeper_folder / CREDENTIALS_FILE).unlink(missing_ok=True)  # its stream is there already
        self.notices.append(notice_of_common(seed))
        return {self._key(seed, ACCOUNT_KEY).public: common_account(token, stretto.public)} if seed.exists() else {}

    def _key(self, path: Path, kind: int) -> Key:
        if path.exists():
            try:
                return Key(path.read_text().strip())
            except IdentityFault as fault:
                raise IdentityFault(f"{path}: {fault}") from None
        key = Key.new(kind)
        self._write(path, key.seed + "\n")
        return key

    def _user(
        self, account: Key, name: str, rights: Rights, tags: Sequence[str] = (), file: Path | None = None
    ) -> None:
        path = file or self.credentials(name)
        wanted, key, token = user_claims(rights, tags), None, ""
        if path.exists():
            try:
                token, key = parts_of(path.read_text())
            except IdentityFault as fault:
                raise IdentityFault(f"{path}: {fault}") from None
        if token and claims_of(token)["iss"] in self._trusted().keys() - {account.public}:
            self.notices.append(notice_of_move(name, path))
        if key is not None and name in self._revoking:
            self._revoke(claims_of(token)["iss"], key.public)
            token, key = "", None
        key = key or Key.new(USER_KEY)
        signed = _signed(account, key.public, name, wanted, token, self._now)
        if signed != token:
            self._write(path, credentials(signed, key))

    def _all_revoked(self) -> dict[str, dict[str, int]]:
        """Account -> public key of a user -> time of its revocation.

        It adds revocations that only the server's file knows: a revoked key stays revoked, even if our file is lost.
        """
        path = self.folder / ROOT / REVOKED_FILE
        try:
            known = _REVOKED.validate_json(path.read_text()) if path.exists() else {}
        except ValidationError as error:
            raise IdentityFault(f"{path}: {error.errors()[0]['msg']}; put it back from where root/ is kept") from None
        found = {account: dict(users) for account, users in known.items()}
        for account, token in self._trusted().items():
            if revoked := claims_of(token)["nats"].get("revocations"):
                found[account] = revoked | found.get(account, {})
        if found != known:
            self._write(path, _json_of(found))
        return found

    def _revoke(self, account: str, user: str) -> None:
        """Record the revocation before new keys exist: after an interruption the command is repeated."""
        self._revoked.setdefault(account, {})[user] = int(self._now)
        self._write(self.folder / ROOT / REVOKED_FILE, _json_of(self._revoked))

    def _trusted(self) -> dict[str, str]:
        """The tokens in the server's file, by public key."""
        path, tokens = self.folder / SERVER / TRUST_FILE, dict[str, str]()
        for part in path.read_text().split('"') if path.exists() else ():
            with contextlib.suppress(IdentityFault):  # public, and can be made again
                tokens[claims_of(part)["sub"]] = part
        return tokens

    def _trust(self, operator: Key, system: str, accounts: dict[str, Account]) -> str:
        path = self.folder / SERVER / TRUST_FILE
        known, tokens = path.read_text() if path.exists() else "", self._trusted()
        claims: Claims = {"type": "operator", "version": 2, "system_account": system}
        root = _signed(operator, operator.public, "stretto", claims, tokens.get(operator.public, ""), self._now)
        preload: dict[str, str] = {}
        for public, (name, limits, more) in accounts.items():
            claims = {"type": "account", "version": 2, "limits": limits, **more}
            if revoked := self._revoked.get(public):
                claims["revocations"] = revoked
            preload[public] = _signed(operator, public, name, claims, tokens.get(public, ""), self._now)
        lines = [f"operator: {json.dumps(root)}", f"system_account: {system}", "resolver: MEMORY"]
        text = "\n".join([*lines, f"resolver_preload: {json.dumps(preload, indent=1)}", ""])
        if text != known:
            self._write(path, text)
        return text

    def _certify(self, hosts: Sequence[str], owners: Sequence[str]) -> None:
        """Give everybody the authority's certificate.

        The server's own is issued again if another authority signed it, it is for other hosts, or it ends soon.
        """
        root, files = self.folder / ROOT, self.certificate
        if not (root / CA_FILE).exists():
            authority = certificates.authority(self._now)
            self._write(root / "ca.key", authority.key)
            self._write(root / CA_FILE, authority.certificate)
        ca = (root / CA_FILE).read_text()
        for owner in owners:
            if not (copy := self.folder / owner / CA_FILE).exists() or copy.read_text() != ca:
                self._write(copy, ca)
        known = files.file.read_text() if files.file.exists() else ""
        if not files.key_file.exists() or not certificates.usable(known, ca, hosts, self._now):
            made = certificates.issue(certificates.Pair(ca, (root / "ca.key").read_text()), hosts, self._now)
            self._write(files.key_file, made.key)
            self._write(files.file, made.certificate)

    def _write(self, path: Path, text: str) -> None:
        for folder in (self.folder, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, text)
        self.made.append(path)


def _signed(issuer: Key, subject: str, name: str, nats: Claims, known: str, now: float) -> str:
    """Sign a token, or keep ``known`` if it has the same claims."""
    if known:
        claims = {part: value for part, value in claims_of(known).items() if part not in ("iat", "jti")}
        if claims == {"iss": issuer.public, "name": name, "sub": subject, "nats": nats} and issuer.has_signed(known):
            return known
    return issuer.sign(subject, name, nats, now)


def _json_of(revoked: Mapping[str, Mapping[str, int]]) -> str:
    return json.dumps(revoked, indent=1) + "\n"


def _check_external_name(name: str) -> None:
    token = name.replace("-", "").replace("_", "")
    if name in RESERVED or not (token.isascii() and token.isalnum()):
        raise IdentityFault(
            f"{name!r}: not a name for a tool outside; letters, digits, - and _, and none of "
            f"{', '.join(sorted(RESERVED))}"
        )


def _own(pods: str, system: str) -> dict[str, Any]:
    """Claims of the account STRETTO: mapping of requests to partitions, ways to pods and to outside, and the request
    that every server answers about itself."""
    mappings = {source: [{"subject": to, "weight": 100}] for source, to in RPC_MAPPING.items()}
    exports = [
        {"name": "events", "subject": "evt.v1.>", "type": "stream"},
        {"name": "kept-events", "subject": f"{EXTERNAL_DELIVERY}.>", "type": "stream"},
        {"name": "consume-events", "subject": f"$JS.API.{CONSUME}", "type": "service"},
        {"name": "flow-control", "subject": f"$JS.FC.{STREAM}.>", "type": "service"},
        {"name": "from-pods", "subject": _FROM_PODS, "type": "service", "response_threshold": _ns(_SERVICE_ANSWER_S)},
    ]
    imports = [
        {"name": "to-pods", "subject": "pod.v1.>", "type": "service", "account": pods},
        {**_SERVERS, "account": system},
    ]
    return {"mappings": mappings, "exports": exports, "imports": imports}


def _of_pods(account: str, signing_key: str) -> dict[str, Any]:
    """Claims of the account PODS: the scope of the signing key, and the only ways in and out.

    A reply subject that a pod names is one of this account: the server writes another in its place on the way out.
    """
    exports = [{"name": "to-pods", "subject": "pod.v1.>", "type": "service", "response_threshold": _ns(POD_ANSWER_S)}]
    imports = [{"name": subject, "subject": subject, "type": "service"} for subject in pods_send()]
    imports += [{"name": subject, "subject": subject, "type": "stream"} for subject in pods_read()]
    return {
        "signing_keys": [pod_scope(signing_key)],
        "exports": exports,
        "imports": [{**each, "account": account} for each in imports],
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
