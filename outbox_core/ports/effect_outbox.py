"""The rows of one tenant: materialize, claim, settle; the only port that handles a claim_id."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime, timedelta

    from outbox_core.domain.effect import Claim, NewEffect, Settlement
    from outbox_core.ports.transactions import Transaction


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settle came to: the ids it wrote, and those whose claim was lost (fenced out, left alone)."""

    owned: frozenset[str]
    fenced_out: frozenset[str]


class EffectOutbox(Protocol):
    """One consistency boundary: rows and run records. Every call may raise TransientError.

    Times are the server's. Every write over known ids filters on row, tenant, claim_id and state (E26).
    """

    def check(self, effect: NewEffect) -> None:
        """Raise UnstorableRowError where the row could not be written: not encodable, or over its bound. No I/O."""
        ...

    def materialize(self, effects: Sequence[NewEffect], now: datetime) -> frozenset[str]:
        """Insert the rows, durably on a majority, stamped with `now`; return the ids that are new.

        An id that exists is left exactly as it is, claimed and done ones included. Returns only if every row is
        durable; raises RowsRefusedError where the store refused some for good, TransientError for anything else, a
        write-concern error included. A repeat is harmless. Source: docs/decisions/0001.
        """
        ...

    def claim_due(self, limit: int, *, worker: str, lease: timedelta, crowded: bool = False) -> Claim:
        """Take up to `limit` due rows in due order under a fresh claim_id.

        Pending and lease-over rows stand in one order. Where the oldest is lease-over or runs alone it is taken by
        itself, else the batch is filled from the others. `crowded` says that others claim from the same line, so that
        this claim does not fight them for each row: where four times `limit` are due it takes the oldest eighth of a
        batch and a sample of the rest; `Claim.lost` tells of such a fight. A row that does not decode parks and does
        not stop the rest; where nothing is due one that never could be is looked for and parked (`Claim.parked` counts
        both).
        A claim whose answer was lost is found again before this returns (E43).
        """
        ...

    def renew(self, claim: Claim, effect_ids: Iterable[str], lease: timedelta) -> int:
        """Let the lease of these rows end `lease` from now, where the claim still holds them; return how many.

        Never shortens a lease.
        """
        ...

    def release(self, claim: Claim, effect_ids: Iterable[str]) -> int:
        """Give rows back unrun, at their old place in line, attempts kept; return how many the claim still held."""
        ...

    def finished_runs(self, effect_ids: Iterable[str]) -> frozenset[str]:
        """Return those whose run record says that the bot finished without error."""
        ...

    def settle(self, claim: Claim, settlements: Mapping[str, Settlement]) -> Settled:
        """Write run records, then rows.

        A repeat after a lost answer counts a row that stands in its settlement's target state under this claim as
        owned. A run record is written only over one of an older or the same claim.
        """
        ...

    def mark_consumed(self, transaction: Transaction, claim: Claim, effect_id: str) -> None:
        """Note down, inside the transaction that consumes its labels, that they were consumed for this row (E36).

        Raises ClaimLostError where the claim does not hold the row any more; the transaction must then be left.
        """
        ...

    def settle_in(self, transaction: Transaction, claim: Claim, effect_id: str, settlement: Settlement) -> None:
        """Write one row's run record and settlement inside a transaction.

        Raises ClaimLostError where the claim does not hold the row any more; the transaction must then be left.
        """
        ...

    def is_due(self) -> bool:
        """Say whether a live row is due now, by the server's time."""
        ...

    def next_due(self) -> datetime | None:
        """Return when the next live row is due, None where there is none."""
        ...

    def get(self, effect_id: str) -> Mapping[str, Any]:
        """Return the stored row with its run under `run`; raise EffectNotFoundError where there is none."""
        ...

    def list(
        self, *, state: str | None = None, sub_id: str | None = None, after: str = "", limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """Return stored rows in the order of their ids, from above `after`."""
        ...

    def newest(
        self, *, state: str | None = None, sub_id: str | None = None, after: str = "", limit: int = 100
    ) -> Sequence[Mapping[str, Any]]:
        """Return stored rows by their event's number, the newest first, those of one event in the order of their ids.

        They begin after the row `after`; EffectNotFoundError where that is gone. For people: every row of the tenant
        is looked at, as by `counts`.
        """
        ...

    def counts(self) -> Mapping[str, int]:
        """Return how many rows are in each state, done ones by outcome as `done:<outcome>`."""
        ...
