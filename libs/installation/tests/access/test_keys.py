"""Content of key folders; missing keys are added, and existing ones are never lost."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from unittest.mock import ANY

import nats
import nats.errors
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from stretto_bus import Client
from stretto_bus.faults import IdentityFault
from stretto_bus.login import Login, claims_of
from stretto_installation.__main__ import main
from stretto_installation.access import permissions
from stretto_installation.access.keys import Keys
from stretto_installation.server import free_port
from stretto_runtime.access.identity import ACCOUNT_KEY, Key, credentials, mint, parts_of, pods_account_of, renew
from stretto_wire.contract.registry import USERS

from tests.waits import until

Serving = Callable[[Path, int], Popen[bytes]]
KEY, ACCOUNT = Key.new(ACCOUNT_KEY), Key.new(ACCOUNT_KEY)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_keys_are_made_once_and_for_nobody_elses_eyes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", str(tmp_path / "keys")])
    first = everything(tmp_path / "keys")
    told = capsys.readouterr().out
    assert all(f"{tmp_path / 'keys' / name}: " in told for name in (*USERS, "root", "server", "external"))
    assert not [word for file in first.values() for word in file.decode().split() if word in told and len(word) > 50]
    main(["keys", str(tmp_path / "keys")])
    assert everything(tmp_path / "keys") == first
    assert "complete" in capsys.readouterr().out
    modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "keys").rglob("*")}
    assert modes == {0}


def test_an_old_folder_gets_what_a_newer_version_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Keys(tmp_path, 1e9)
    before = everything(tmp_path)
    rights_of = permissions.rights_of
    grown = {"herald": permissions.Rights(("evt.v1.herald.>",), ("_INBOX.herald.>",))}
    grown["planner"] = permissions.Rights((*rights_of("planner").publish, "more"), rights_of("planner").subscribe)
    monkeypatch.setattr("stretto_installation.access.keys.USERS", (*USERS, "herald"))
    monkeypatch.setattr("stretto_installation.access.keys.rights_of", lambda user: grown.get(user) or rights_of(user))
    made = {str(path.relative_to(tmp_path)) for path in Keys(tmp_path, 2e9).made}
    assert made == {"herald/bus.creds", "planner/bus.creds"}
    after = everything(tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"planner/bus.creds"}
    old, new = (parts_of(files["planner/bus.creds"].decode()) for files in (before, after))
    assert old[1].seed == new[1].seed
    assert "more" in claims_of(new[0])["nats"]["pub"]["allow"]


def test_a_folder_without_an_account_of_pods_gets_one_and_keeps_it(tmp_path: Path) -> None:
    Keys(tmp_path, 1e9)
    before = everything(tmp_path)
    (tmp_path / "root/pods.seed").unlink()
    with pytest.raises(IdentityFault, match=r"root/pods.seed is missing"):
        Keys(tmp_path, 2e9)
    trust = tmp_path / "server/trust.conf"
    trust.write_text(trust.read_text().replace(dict(accounts(tmp_path))["PODS"], ""))
    made = Keys(tmp_path, 2e9)
    assert {str(path.relative_to(tmp_path)) for path in made.made} == {
        "root/pods.seed",
        "actuator/bus.creds",
        "actuator/connections.creds",
        "server/trust.conf",
    }
    after = everything(tmp_path)
    old, new = (parts_of(files["actuator/bus.creds"].decode()) for files in (before, after))
    assert (old[1].seed, pods_account_of(new[0])) == (new[1].seed, made.pods_account)
    assert before["actuator/pods.seed"] == after["actuator/pods.seed"]
    assert pods_account_of(old[0]) != made.pods_account
    assert not Keys(tmp_path, 3e9).made


def test_only_the_account_of_pods_believes_the_key_of_pods_and_it_stores_nothing(tmp_path: Path) -> None:
    made = Keys(tmp_path, 1e9)
    claims = {name: claims_of(token) for name, token in accounts(tmp_path)}
    assert {name for name, each in claims.items() if "signing_keys" in each["nats"]} == {"PODS"}
    assert claims["PODS"]["sub"] == made.pods_account
    limits = claims["PODS"]["nats"]["limits"]
    assert not {"mem_storage", "disk_storage", "streams", "consumer"} & {*limits}
    assert limits["conn"] >= 10_000
    [scope] = claims["PODS"]["nats"]["signing_keys"]
    assert {name: scope["template"][name] for name in permissions.POD_LIMITS} == permissions.POD_LIMITS


@pytest.mark.parametrize("name", ["planner", "root", "a.b", "*", ">", "", "a b", "external-keeper"])
def test_a_tool_outside_cannot_have_a_name_that_says_more(name: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a name for a tool outside"):
        main(["keys", str(tmp_path), "--external", name])


@pytest.mark.parametrize("file", ["root/stretto.seed", "planner/bus.creds", "server/trust.conf"])
def test_a_damaged_file_is_named_and_nothing_of_it_told(file: str, tmp_path: Path) -> None:
    Keys(tmp_path, 1e9)
    secret = (tmp_path / file).read_text()
    (tmp_path / file).write_text(secret.replace("eyJ", "eyJ!").replace("SA", "SB").replace("SU", "SV"))
    if file == "server/trust.conf":
        assert Keys(tmp_path, 1e9).trust.count("eyJ") == secret.count("eyJ")  # public, so it is made anew
        return
    with pytest.raises(IdentityFault) as raised:
        Keys(tmp_path, 1e9)
    assert file in str(raised.value)
    assert not [word for word in secret.split() if word in str(raised.value) and len(word) > 20]


def test_what_was_taken_away_from_here_is_asked_for_and_not_made_anew(tmp_path: Path) -> None:
    Keys(tmp_path / "keys", 1e9)
    (tmp_path / "keys" / "root").rename(tmp_path / "safe")
    before = everything(tmp_path)
    with pytest.raises(SystemExit, match=r"root/operator.seed is missing.*put root/ back"):
        main(["keys", str(tmp_path / "keys"), "--external", "crm"])
    assert everything(tmp_path) == before
    (tmp_path / "safe").rename(tmp_path / "keys" / "root")
    made = Keys(tmp_path / "keys", 2e9, ["crm"]).made
    assert {str(path.relative_to(tmp_path / "keys")) for path in made} == {
        "crm/bus.creds",
        "external-keeper/crm.creds",
        "root/external-crm.seed",
        "server/trust.conf",
    }


names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)
pods = st.builds(lambda role, number: f"{role}-{number}", st.sampled_from(["worker", "ps"]), st.integers(0, 10**6))


@given(names, pods, st.floats(0, 1e10), st.floats(1, 1e6), st.floats(0.01, 0.99))
def test_a_pods_credentials_are_its_own_and_can_be_prolonged(
    job: str, pod: str, now: float, life_s: float, part: float
) -> None:
    token, key = parts_of(mint(KEY, ACCOUNT.public, job, pod, now, life_s))
    claims = claims_of(token)
    assert KEY.has_signed(token)
    assert not ACCOUNT.has_signed(token)
    assert (claims["sub"], claims["exp"], claims["nats"]["issuer_account"]) == (
        key.public,
        int(now + life_s),
        ACCOUNT.public,
    )
    assert "pub" not in claims["nats"], "the scope says what it may"
    assume(int(now + life_s) > now + part * life_s)
    renewed = claims_of(renew(KEY, token, job, pod, now + part * life_s, life_s))
    assert renewed["exp"] >= claims["exp"]
    assert {**renewed, "exp": 0, "iat": 0, "jti": ""} == {**claims, "exp": 0, "iat": 0, "jti": ""}


@given(names, names, pods, pods)
def test_only_ones_own_valid_token_is_prolonged(job: str, another: str, pod: str, neighbour: str) -> None:
    assume(job != another and pod != neighbour)
    token, key = parts_of(mint(KEY, ACCOUNT.public, job, pod, 100.0, 10.0))
    forged = ACCOUNT.sign(key.public, f"{job}/{pod}", claims_of(token)["nats"], 100.0, 110.0)
    head, body, signature = token.split(".")
    for bad, of_job, of_pod, now in (
        (token, another, pod, 101.0),
        (token, job, neighbour, 101.0),
        (token, job, pod, 110.0),
        (forged, job, pod, 101.0),
        (f"{head}.{body[:-4]}AAAA.{signature}", job, pod, 101.0),
        ("", job, pod, 101.0),
        ("a.b.c", job, pod, 101.0),
        (token.rpartition(".")[0], job, pod, 101.0),
    ):
        with pytest.raises(IdentityFault):
            renew(KEY, bad, of_job, of_pod, now, 10.0)


@pytest.mark.parametrize(("job", "pod"), [("*", "ps-0"), (">", "ps-0"), ("a.b", "ps-0"), ("a", "*"), ("a", "ps-0.x"),
                                          ("A", "ps-0"), ("a b", "ps-0"), ("", "ps-0"), ("a", "")])  # fmt: skip
def test_no_token_is_tagged_with_more_than_a_name(job: str, pod: str) -> None:
    with pytest.raises(IdentityFault):
        mint(KEY, ACCOUNT.public, job, pod, 0.0, 1.0)


def test_what_is_secret_is_in_no_text_of_a_key() -> None:
    assert KEY.seed not in f"{KEY!r} {KEY}"
    with pytest.raises(IdentityFault) as raised:
        Key(KEY.seed[:30] + ("A" if KEY.seed[30] != "A" else "B") + KEY.seed[31:])
    assert KEY.seed[:20] not in str(raised.value)


def test_credentials_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    file = tmp_path / "bus.creds"
    for text in (None, "", "nonsense", credentials("no.token", KEY)):
        if text is not None:
            file.write_text(text)
        with pytest.raises(IdentityFault, match=f"STRETTO_NATS_CREDENTIALS={file}: "):
            Login(credentials=file).name()


async def test_the_command_makes_what_a_server_and_its_streams_need(tmp_path: Path, serving: Serving) -> None:
    keys, port = tmp_path / "keys", free_port()
    main(["keys", str(keys)])
    config = tmp_path / "nats.conf"
    config.write_text(
        f"host: 127.0.0.1\nport: {port}\njetstream {{ store_dir: {json.dumps(str(tmp_path))}, max_file_store: 1TB }}\n"
        "include keys/server/trust.conf\n"
    )
    serving(config, port)
    settings = {
        "STRETTO_NATS_URL": f"nats://127.0.0.1:{port}",
        "STRETTO_NATS_CREDENTIALS": str(keys / "operator/bus.creds"),
        "STRETTO_STREAMS_EXTERNAL_CREDENTIALS": str(keys / "external-keeper"),
    }
    make = (sys.executable, "-m", "stretto_installation", "provision")
    made = await asyncio.create_subprocess_exec(*make, env={**os.environ, **settings}, stderr=subprocess.PIPE)
    _, told = await made.communicate()
    assert made.returncode == 0, told.decode()
    client = await Client.connect(settings["STRETTO_NATS_URL"], Login(credentials=keys / "external/bus.creds"))
    assert (await client.bus.ask("STREAM.INFO.EVENTS"))["config"]["mirror"]["name"] == "STRETTO"
    await client.close()


async def test_what_has_leaked_is_revoked_and_nobody_else_disturbed(
    tmp_path: Path, serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, port = tmp_path / "keys", free_port()
    main(["keys", str(keys), "--external", "crm", "--external", "dashboard"])
    config, url = tmp_path / "nats.conf", f"nats://127.0.0.1:{port}"
    config.write_text(f"host: 127.0.0.1\nport: {port}\ninclude keys/server/trust.conf\n")
    process = serving(config, port)
    files = {name: keys / name / "bus.creds" for name in ("crm", "dashboard", "planner", "fitter")}
    leaked = {name: shutil.copy(files[name], tmp_path / f"{name}.leaked") for name in ("crm", "planner")}
    revoked = {name: parts_of(files[name].read_text())[1].public for name in leaked}
    thieves = [await nats.connect(url, user_credentials=str(file), allow_reconnect=False) for file in leaked.values()]
    owners = {name: await Client.connect(url, Login(credentials=file)) for name, file in files.items()}

    def cut() -> set[str]:
        return {name for name, owner in owners.items() if owner.bus.connection.stats["reconnects"]}

    main(["keys", str(keys), "--revoke", "crm", "--revoke", "planner"])
    told = capsys.readouterr().out
    assert all(f"{files[name]}" in told for name in leaked)
    assert "reload" in told
    assert not cut()
    assert all(thief.is_connected for thief in thieves), "it is the server that has to be told"
    process.send_signal(signal.SIGHUP)
    await until(lambda: all(thief.is_closed for thief in thieves))
    await until(lambda: cut() == set(leaked) and all(owner.bus.connected for owner in owners.values()))
    for file in leaked.values():
        with pytest.raises(nats.errors.Error, match="Authorization Violation"):
            await nats.connect(url, user_credentials=str(file), allow_reconnect=False)

    before = everything(keys)
    main(["keys", str(keys), "--external", "crm"])
    (keys / "server/trust.conf").unlink()
    main(["keys", str(keys), "--external", "crm"])
    assert {name: claims_of(token)["nats"].get("revocations") for name, token in accounts(keys)} == {
        "SYSTEM": None,
        "STRETTO": {revoked["planner"]: ANY},
        "PODS": None,
        "EXTERNAL-crm": {revoked["crm"]: ANY},
        "EXTERNAL-dashboard": None,
    }, "also where the server's file was made anew"
    assert everything(keys).keys() == before.keys()
    assert cut() == set(leaked)
    for owner in owners.values():
        await owner.close()


def of_a_former_version(keys: Path, tool: str) -> None:
    """Make a folder in which tools share the account EXTERNAL, as all of them once did."""
    Keys(keys, 1e9, [tool])
    trust, root = keys / "server/trust.conf", keys / "root"
    text, (own,) = trust.read_text(), [token for name, token in accounts(keys) if name == f"EXTERNAL-{tool}"]
    common, operator = Key.new(ACCOUNT_KEY), Key((root / "operator.seed").read_text().strip())
    claims = claims_of(own)
    former = operator.sign(common.public, "EXTERNAL", claims["nats"], 1e9)
    trust.write_text(text.replace(own, former).replace(claims["sub"], common.public))
    (root / f"external-{tool}.seed").unlink()
    (root / "external.seed").write_text(common.seed)
    file = keys / tool / "bus.creds"
    token, key = parts_of(file.read_text())
    file.write_text(credentials(common.sign(key.public, tool, claims_of(token)["nats"], 1e9), key))
    (keys / f"external-keeper/{tool}.creds").rename(keys / "external-keeper/bus.creds")


async def test_a_folder_with_one_account_for_all_tools_is_completed_and_nobody_is_put_out_unsaid(
    tmp_path: Path, serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: complete such a folder, connect with old and new credentials to a real server; remove the old seed,
    repeat."""
    keys, port = tmp_path / "keys", free_port()
    of_a_former_version(keys, "crm")
    old, before = shutil.copy(keys / "crm/bus.creds", tmp_path / "crm.old"), everything(keys)
    main(["keys", str(keys), "--external", "dashboard"])
    assert everything(keys)["crm/bus.creds"] == before["crm/bus.creds"], "only a tool that is named moves"
    assert "crm moves" not in (told := capsys.readouterr().out)
    assert "EXTERNAL, which all tools outside shared, stays for credentials of former versions" in told
    main(["keys", str(keys), "--external", "crm"])
    assert "crm moves to an account of its own" in capsys.readouterr().out
    assert not (keys / "external-keeper/bus.creds").exists()
    main(["keys", str(keys), "--external", "crm"])
    assert "moves" not in capsys.readouterr().out, "it is said once"
    config = tmp_path / "nats.conf"
    config.write_text(f"host: 127.0.0.1\nport: {port}\ninclude keys/server/trust.conf\n")
    serving(config, port)
    url = f"nats://127.0.0.1:{port}"
    for file in (old, keys / "crm/bus.creds", keys / "dashboard/bus.creds"):
        await (await nats.connect(url, user_credentials=str(file), allow_reconnect=False)).close()
    (keys / "root/external.seed").unlink()
    main(["keys", str(keys), "--external", "crm"])
    assert "EXTERNAL, which all tools outside shared, is gone" in capsys.readouterr().out
    assert "EXTERNAL" not in dict(accounts(keys))


def test_revoking_a_tool_that_shared_an_account_revokes_it_there(tmp_path: Path) -> None:
    """Method: revoke a tool in a folder of a former version; its key is listed in that account's token."""
    of_a_former_version(tmp_path, "crm")
    leaked = parts_of((tmp_path / "crm/bus.creds").read_text())[1].public
    Keys(tmp_path, 2e9, [], revoked=["crm"])
    assert claims_of(dict(accounts(tmp_path))["EXTERNAL"])["nats"]["revocations"] == {leaked: ANY}


def accounts(keys: Path) -> list[tuple[str, str]]:
    """Return each account of the server's file."""
    tokens = [part for part in (keys / "server/trust.conf").read_text().split('"') if part.startswith("eyJ")]
    return [(claims_of(token)["name"], token) for token in tokens if claims_of(token)["nats"]["type"] == "account"]


@pytest.mark.parametrize(("name", "told"), [("nobody", "is missing, which says what key"), ("root", "not a name")])
def test_what_cannot_be_revoked_is_said_and_nothing_made(name: str, told: str, tmp_path: Path) -> None:
    Keys(tmp_path, 1e9)
    before = everything(tmp_path)
    with pytest.raises(SystemExit, match=told):
        main(["keys", str(tmp_path), "--revoke", name, "--revoke", "planner"])
    assert everything(tmp_path) == before


@pytest.mark.parametrize("lost", ["root/revoked.json", "server/trust.conf"])
def test_what_was_revoked_stays_so_where_a_file_of_it_is_lost(lost: str, tmp_path: Path) -> None:
    Keys(tmp_path, 1e9)
    Keys(tmp_path, 2e9, revoked=["planner", "external"])
    before = {name: (tmp_path / name).read_text() for name in ("root/revoked.json", "server/trust.conf")}
    (tmp_path / lost).unlink()
    Keys(tmp_path, 3e9)
    assert json.loads((tmp_path / "root/revoked.json").read_text()) == json.loads(before["root/revoked.json"])
    told = {name: claims_of(token)["nats"].get("revocations") for name, token in accounts(tmp_path)}
    assert sum(len(users) for users in told.values() if users) == 2


def test_revocations_that_cannot_be_read_are_not_taken_for_none(tmp_path: Path) -> None:
    Keys(tmp_path, 1e9)
    Keys(tmp_path, 2e9, revoked=["planner"])
    (tmp_path / "root/revoked.json").write_text('{"A": ')
    with pytest.raises(IdentityFault, match=r"root/revoked.json: .*put it back"):
        Keys(tmp_path, 3e9)
