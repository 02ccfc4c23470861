"""Headers of a received message."""

from __future__ import annotations

from stretto_bus.received import Headers

STATUS = b"NATS/1.0 100 FlowControl Request\r\nNats-Last-Consumer: 5\r\n\r\n"


def test_a_header_is_found_by_its_name_and_a_value_is_no_name() -> None:
    headers = Headers(b"NATS/1.0\r\nce-id: traceparent\r\n\r\n")
    assert headers.get("traceparent", "none") == "none"
    assert (headers.get("reason"), headers["ce-id"]) == (None, "traceparent")
    assert Headers(STATUS) == {"Status": "100", "Description": "FlowControl Request", "Nats-Last-Consumer": "5"}
