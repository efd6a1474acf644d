"""A row to be made, and the same row held by who makes it."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta

from outbox_core.domain.effect import Hold, NewEffect
from outbox_core.domain.event import Attributes


def test_a_held_row_is_the_same_row_in_every_field_but_its_hold() -> None:
    row = NewEffect(
        tenant_id="acme",
        seq=7,
        event_id="the event",
        kind="the kind",
        attributes=Attributes(source="app", type="thing"),
        sub_id="the rule",
        bot_id="the bot",
        document_id="the document",
        error="the error",
        trace={"a": "b"},
    )
    hold = Hold(claim_id="claim", worker="worker", lease=timedelta(seconds=60))
    assert row.held_by(hold) == replace(row, hold=hold)
    assert {one.name for one in fields(row) if getattr(row, one.name) in ("", None, {})} == {"hold"}
