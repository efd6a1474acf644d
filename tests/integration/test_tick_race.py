"""Two beats read one tick at once: one of them takes it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.harness.on_mongo import MongoHarness

INTERVAL = timedelta(seconds=3)


@pytest.mark.promise("C04")
def test_of_two_beats_that_read_one_tick_at_once_one_takes_it(
    mongo_harness: MongoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    maintenance = mongo_harness.store.maintenance
    assert maintenance.tick_due("sweep", INTERVAL)
    mongo_harness.advance(INTERVAL + timedelta(seconds=1))
    real, others = getattr(maintenance, "_tolerant"), list[bool]()  # noqa: B009 - this store's own

    class Stale:
        """The ticks of a beat that another one overtakes right after its read."""

        def __init__(self, ticks: Any) -> None:  # noqa: ANN401 - the driver's collection
            self._ticks = ticks

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any of its methods
            return getattr(self._ticks, name)

        def find_one(self, *asked: Any) -> object:  # noqa: ANN401 - as the driver's
            found = self._ticks.find_one(*asked)
            with monkeypatch.context() as other:
                other.setattr(maintenance, "_tolerant", real)
                others.append(maintenance.tick_due("sweep", INTERVAL))
            return found

    monkeypatch.setattr(maintenance, "_tolerant", lambda name: Stale(real(name)))
    assert not maintenance.tick_due("sweep", INTERVAL)
    assert others == [True]
