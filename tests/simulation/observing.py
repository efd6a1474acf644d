"""Playing consumers of one tenant's lifecycle stream."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from outbox_core.application.delete_card import delete_card
from outbox_core.application.observe_lifecycle import observe_lifecycle
from outbox_core.application.restore_card import restore_card
from outbox_core.domain.board import Card
from outbox_core.domain.board_input import Cause
from outbox_core.domain.consumer import Poll, PollReport, Start
from outbox_core.domain.observer import Observation, Observer, Reconciliation

if TYPE_CHECKING:
    from collections.abc import Callable

    from outbox_core.ports.runtime import Runtime
    from outbox_core.ports.store import TenantStore
    from tests.harness.base import Harness


class Cache:
    """An observer that holds the live cards, and what it was told; `fails` names cards at which it raises."""

    def __init__(self, *fails: str) -> None:
        self.told: list[Observation] = []
        self.reconciled: list[str] = []
        self.cards: set[str] = set()
        self.fails = set(fails)
        self.on_call: Callable[[Observation], None] = lambda _: None

    def __call__(self, observation: Observation) -> None:
        self.told.append(observation)
        self.on_call(observation)
        if observation.event.task_id in self.fails:
            raise ValueError("told not to")
        if observation.event.event_type == "task:deleted":
            self.cards.discard(observation.event.task_id)
        else:
            self.cards.add(observation.event.task_id)

    def reconcile(self, given: Reconciliation) -> None:
        self.reconciled.append(given.why)
        self.cards = {card.card_id for card in given.cards}

    @property
    def ids(self) -> list[str]:
        """The cards of the events it was told, in order, with the sign of what happened."""
        signs = {"task:deleted": "-", "task:restored": "+"}
        return [f"{signs[one.event.event_type]}{one.event.task_id}" for one in self.told]


def observer(cache: Cache, consumer_id: str = "cache", start: Start = Start.BEGINNING, **more: Any) -> Observer:  # noqa: ANN401
    """Return the cache as the observer of a consumer."""
    return Observer(consumer_id=consumer_id, function=cache, start=start, **{"reconcile": cache.reconcile, **more})


def put_cards(store: TenantStore, *card_ids: str) -> None:
    """Have live cards, as if they had always been."""
    with store.transactions.begin() as transaction:
        for card_id in card_ids:
            store.cards.put(Card(tenant_id=store.tenant_id, card_id=card_id, state="todo"), transaction)
        transaction.commit()


def delete(store: TenantStore, runtime: Runtime, *card_ids: str) -> None:
    for card_id in card_ids:
        delete_card(store, runtime, card_id, Cause())


def restore(store: TenantStore, runtime: Runtime, *card_ids: str) -> None:
    for card_id in card_ids:
        restore_card(store, runtime, card_id, Cause())


def watched(store: TenantStore, runtime: Runtime, cards: int = 3, *, consumer: str = "cache") -> list[str]:
    """Have a registered consumer, and cards that are then deleted; return their ids."""
    ids = [f"c{number}" for number in range(1, cards + 1)]
    put_cards(store, *ids)
    store.consumers.register(consumer, Start.BEGINNING, "test")
    delete(store, runtime, *ids)
    return ids


def poll_to_rest(harness: Harness, store: TenantStore, runtime: Runtime, one: Observer) -> PollReport:
    """Poll until nothing is left to do, over every wait."""
    for _ in range(100):
        report = observe_lifecycle(store, runtime, one)
        if report.poll is Poll.IDLE:
            return report
        harness.advance(report.wait or timedelta(0))
    raise AssertionError(f"{one.consumer_id} does not come to rest")


def cursor(store: TenantStore, consumer_id: str = "cache") -> int | None:
    found = store.consumers.look(consumer_id).consumer
    assert found is not None
    return found.cursor
