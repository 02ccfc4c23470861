"""Pure rules: retrying, addresses, signatures, the file of endpoints."""

from __future__ import annotations

import base64
import ipaddress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretBytes
from stretto_bus.reading.ordered_consumer import Stored
from stretto_forwarder.handlers import NotForwardable, Post, post_of, signed
from stretto_forwarder.points import Points
from stretto_forwarder.posting import Poster, allowed
from stretto_forwarder.retrying import Again, AttemptOutcome, Delivered, EndpointFailures, GiveUp, Stop, retry_after_s
from stretto_forwarder.settings import ForwarderSettings, targets_of
from stretto_forwarder.tensorboard import End, append, end_of, event, record
from stretto_runtime import SettingsFault

FAILED = st.sampled_from([0, 301, 400, 401, 404, 408, 429, 500, 503]).map(lambda status: AttemptOutcome(status, "no"))


@given(outcomes=st.lists(FAILED, max_size=200), random=st.floats(0, 1, exclude_max=True), give_up_s=st.floats(1, 1e5))
def test_who_only_fails_is_given_up_in_time_and_is_left_in_peace_between(
    outcomes: list[AttemptOutcome], random: float, give_up_s: float
) -> None:
    course, now, pauses = EndpointFailures(1.0, 300.0, give_up_s), 0.0, list[float]()
    for outcome in outcomes:
        decision = course.decide(outcome, now, lambda: random)
        if isinstance(decision, GiveUp):
            assert now >= give_up_s
            break
        assert isinstance(decision, Again)
        pauses.append(decision.wait_s)
        now += decision.wait_s
    assert now <= give_up_s + 1e-6
    for number, pause_s in enumerate(pauses[:-1]):
        assert min(300.0, 2.0**number) / 2 <= pause_s <= 300.0
    assert course.decide(AttemptOutcome(204, ""), now, lambda: random) == Delivered()
    assert course.failing_since_s is None


def test_a_dead_endpoint_costs_each_later_event_one_attempt() -> None:
    course = EndpointFailures(1.0, 300.0, 60.0)
    assert isinstance(course.decide(AttemptOutcome(0, "no"), 0.0, lambda: 0.5), Again)
    assert course.decide(AttemptOutcome(0, "no"), 61.0, lambda: 0.5) == GiveUp("no")
    assert course.decide(AttemptOutcome(0, "no"), 62.0, lambda: 0.5) == GiveUp("no")
    assert course.decide(AttemptOutcome(200, ""), 63.0, lambda: 0.5) == Delivered()
    assert isinstance(course.decide(AttemptOutcome(0, "no"), 64.0, lambda: 0.5), Again)


def test_what_the_receiver_asks_for_is_done() -> None:
    course = EndpointFailures(1.0, 300.0, 3600.0)
    assert course.decide(AttemptOutcome(503, "no", 120.0), 0.0, lambda: 0.0) == Again(120.0)
    assert course.decide(AttemptOutcome(503, "no", 1e9), 0.0, lambda: 0.0) == Again(3600.0)
    assert course.decide(AttemptOutcome(410, "gone"), 0.0, lambda: 0.0) == Stop("gone")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120), ("", 0), ("soon", 0), ("-5", 0), ("Sun, 22 Nov 2026 10:00:30 GMT", 30),
        ("Sun, 22 Nov 2026 09:00:00 GMT", 0), ("9" * 400, 999999999), (f"Sun, 22 Nov {'9' * 20} 09:00:00 GMT", 0),
    ],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date(text: str, seconds: float) -> None:
    assert retry_after_s(text, 1795341600.0) == seconds


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1",
        "255.255.255.255", "::1", "::", "fe80::1", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1",
        "64:ff9b::7f00:1", "2002:7f00:1::1", "2001:db8::1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_not_posted_to(address: str) -> None:
    assert not allowed(ipaddress.ip_address(address), (), public=True)


def test_public_addresses_and_named_networks_are() -> None:
    private = ipaddress.ip_network("10.1.0.0/16")
    assert allowed(ipaddress.ip_address("93.184.215.14"), (), public=True)
    assert allowed(ipaddress.ip_address("2606:2800:21f::1"), (), public=True)
    assert allowed(ipaddress.ip_address("10.1.2.3"), (private,), public=False)
    assert allowed(ipaddress.ip_address("::ffff:10.1.2.3"), (private,), public=True)
    assert not allowed(ipaddress.ip_address("10.2.0.1"), (private,), public=True)
    assert not allowed(ipaddress.ip_address("93.184.215.14"), (private,), public=False)


@pytest.mark.parametrize("url", ["https://a..b/", "https://127.0.0.1:99999/", "https://a/ä"])
async def test_an_attempt_that_cannot_even_begin_has_failed_like_any_other(url: str) -> None:
    poster = Poster(url, (), None, 5.0)
    outcome = await poster.post({"content-type": "application/json"}, b"{}")
    await poster.close()
    assert outcome.status == 0
    assert "Error" in outcome.reason


def test_the_signature_is_that_of_the_standards_own_example() -> None:
    secret = SecretBytes(base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    post = Post("msg_p5jXN8AQM9LWM0D4loKWxJek", {}, b'{"test": 2432232314}')
    headers = signed(post, (secret, SecretBytes(b"x" * 32)), 1614265330.7)
    first, second = headers["webhook-signature"].split()
    assert first == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert second != first
    assert headers["webhook-timestamp"] == "1614265330"


def stored(subject: str = "3.evt.v1.arbiter.plan-decided.a", **changed: str) -> Stored:
    headers = {"ce-specversion": "1.0", "ce-id": "a:1", "ce-source": "/s", "ce-type": "t", "Nats-Msg-Id": "a:1"}
    return Stored(7, 0.0, subject, headers | changed, b"{}")


@given(st.text(min_size=1, max_size=40))
def test_a_header_is_ascii_whatever_an_attribute_holds(text: str) -> None:
    for value in post_of(stored(**{"ce-source": text})).headers.values():
        assert value.isascii()
        assert value.isprintable()


def test_what_is_no_event_is_told_so() -> None:
    with pytest.raises(NotForwardable, match="ce-id"):
        post_of(stored(**{"ce-id": ""}))
    with pytest.raises(NotForwardable, match="registry"):
        post_of(stored("3.evt.v1.arbiter.unheard-of.a"))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "A"}, "name"),
        ({"url": "ftp://a"}, "url"),
        ({"url": "https://user:pass@a/"}, "url"),
        ({"url": "https://a:99999/"}, "a port from 1 to 65535"),
        ({"url": "https://a..b/"}, "cannot be posted to"),
        ({"url": "https://?a"}, "give a host name or address"),
        ({"url": "https://a/ä"}, "nothing but ASCII"),
        ({"events": ["plan-decide"]}, "did you mean plan-decided"),
        ({"jobs": ["A b"]}, "jobs"),
        ({"start": "yesterday"}, "start"),
        ({"colour": 1}, "colour"),
        ({"secret_env": None}, "either secret_file or secret_env"),
        ({"secret_env": "NONE"}, "there is no secret in NONE"),
        ({"secret_env": "SHORT"}, "at least 24 bytes"),
        ({"secret_env": None, "secret_file": "/nowhere"}, "cannot be read"),
        ({"url": None}, "cannot be posted to"),
        ({"form": "wandb"}, "form"),
        ({"form": "tensorboard"}, "give the absolute folder of TensorBoard, and no url"),
        ({"form": "tensorboard", "events": ["evaluation-measurd"]}, "did you mean evaluation-measured"),
        ({"form": "tensorboard", "url": None, "folder": "board"}, "give the absolute folder"),
        ({"folder": "/board"}, "folder is for form: tensorboard"),
        ({"form": "mlflow", "url": "https://a/?b=c"}, "without a query"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_a_sentence(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    good = {"name": "a", "url": "https://a.example/", "secret_env": "GOOD"}
    environ = {"GOOD": "whsec_" + base64.b64encode(b"g" * 24).decode(), "SHORT": "whsec_" + "c2hvcnQ="}
    path = tmp_path / "endpoints.yaml"
    path.write_text(str([{key: value for key, value in {**good, **entry}.items() if value is not None}]))
    settings = ForwarderSettings(endpoints_file=path)
    with pytest.raises(SettingsFault, match=words) as caught:
        targets_of(settings, environ)
    assert environ["GOOD"] not in str(caught.value)
    assert "c2hvcnQ" not in str(caught.value)
    path.write_text(str([good, good]))
    with pytest.raises(SettingsFault, match="2 endpoints are called a"):
        targets_of(settings, environ)
    path.write_text(str([good]))
    (target,) = targets_of(settings, environ)
    assert "gggg" not in repr(target)


def test_an_event_of_tensorboard_is_written_byte_for_byte() -> None:
    """TensorFlow's own reader gave back these values of these bytes, whose checksums it verifies."""
    written = record(event(Points("a", 5, 1.5, 300, {"x": 0.5})))
    assert written.hex() == (
        "2500000000000000eabc36f309000000000000f83f10ac022a0a0a080a0178150000003f520b0a097374726574746f3a356d6fb148"
    )
    assert event(Points("a", 5, 1.5, 300, {"x": 1e39})).count(bytes.fromhex("ffff7f7f")) == 1, "the largest of 32 bits"


def test_points_that_come_again_are_written_once_and_those_of_a_fresh_installation_too(tmp_path: Path) -> None:
    file, end = tmp_path / "a" / "events", End()
    points = ((7, 10.0, True), (7, 10.0, False), (6, 9.0, False), (2, 20.0, True), (3, 20.0, True))
    for seq, time_s, is_written in points:
        before = end
        end = append(file, Points("a", seq, time_s, 1, {"x": 0.5}), end)
        assert (end != before) == is_written
        assert append(file, Points("a", seq, time_s, 1, {"x": 0.5}), End()) == end, "by a forwarder that starts"
        assert end == end_of(file.read_bytes()) == End(file.stat().st_size, end.seq, end.time_s)
