"""What rules match, stored: written out field by field, since a general copy costs ten times as much."""

from __future__ import annotations

from dataclasses import fields

import pytest

from outbox_core.adapters.mongo.documents import StoredAttributes
from outbox_core.domain.event import Attributes, Snapshot


@pytest.mark.promise("E17")
def test_no_attribute_of_an_event_is_lost_on_its_way_to_a_store_and_back() -> None:
    """Each field holds its own name, also one that is added later."""
    names = {one.name for one in fields(Snapshot)} - {"labels"}
    snapshot = Snapshot(labels=("first", "second"), **{name: f"the {name}" for name in names})
    texts = {one.name for one in fields(Attributes)} - {"snapshot"}
    seen = Attributes(snapshot=snapshot, **{name: f"the {name}" for name in texts})
    document = seen.document()
    assert StoredAttributes.model_validate(document).to_domain() == seen
    assert document == {
        **{name: f"the {name}" for name in texts},
        "snapshot": {**{name: f"the {name}" for name in names}, "labels": ["first", "second"]},
    }
