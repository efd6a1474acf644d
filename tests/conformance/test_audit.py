"""What ports.audit promises, on both stores."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.domain.errors import ContentionError
from outbox_core.domain.lifecycle_event import CARD_DELETED, CARD_RESTORED
from tests.harness.lifecycle import AUDIT, deletion

if TYPE_CHECKING:
    from outbox_core.domain.lifecycle_event import LifecycleChange, LifecycleEvent
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness


def record(store: TenantStore, change: LifecycleChange, by: str = "ann", why: str = "done") -> LifecycleEvent:
    with store.transactions.begin() as transaction:
        event = store.stream.append(change, transaction)
        store.audit.record(event, by, why, transaction)
        transaction.commit()
    return event


@pytest.mark.promise("L01")
def test_a_change_has_one_row_with_who_made_it_and_ids_and_counts(harness: Harness) -> None:
    event = record(harness.acme, deletion(1))
    (row,) = harness.acme.audit.rows()
    assert (row.tenant_id, row.code, row.subject, row.by, row.why) == ("acme", CARD_DELETED, "c1", "ann", "done")
    assert dict(row.detail) == {"event_id": event.event_id, "sequence": 1}
    assert abs(row.at - harness.now()) < timedelta(minutes=1)


@pytest.mark.promise("L01")
def test_a_row_is_undone_with_its_transaction(harness: Harness) -> None:
    with harness.acme.transactions.begin() as transaction:
        event = harness.acme.stream.append(deletion(1), transaction)
        harness.acme.audit.record(event, "ann", "", transaction)
    assert harness.raw(AUDIT) == []
    assert list(harness.acme.audit.rows()) == []


@pytest.mark.promise("L02")
def test_a_second_row_of_one_event_is_refused_and_undoes_its_transaction(harness: Harness) -> None:
    event = record(harness.acme, deletion(1))
    store = harness.acme
    with store.transactions.begin() as transaction:
        store.stream.append(deletion(2), transaction)
        with pytest.raises(ContentionError):
            store.audit.record(event, "bob", "again", transaction)
    assert [row.by for row in store.audit.rows()] == ["ann"]
    assert store.stream.head() == 1


def test_rows_come_newest_first_by_code_and_by_subject(harness: Harness) -> None:
    for number in (1, 2, 3):
        record(harness.acme, deletion(number))
        harness.advance(timedelta(seconds=1))
    record(harness.acme, deletion(2, event_type=CARD_RESTORED))
    audit = harness.acme.audit
    assert [row.subject for row in audit.rows()] == ["c2", "c3", "c2", "c1"]
    assert [row.subject for row in audit.rows(limit=2)] == ["c2", "c3"]
    assert [row.subject for row in audit.rows(code=CARD_DELETED)] == ["c3", "c2", "c1"]
    assert [row.code for row in audit.rows(subject="c2")] == [CARD_RESTORED, CARD_DELETED]
    assert [row.code for row in audit.rows(subject="c2", code=CARD_DELETED)] == [CARD_DELETED]
    assert list(harness.other.audit.rows()) == []
