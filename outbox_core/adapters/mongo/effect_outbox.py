"""The rows of one tenant on trigger_effects and runs: these modules alone handle a claim_id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core.adapters.mongo.effect_claiming import ClaimingRows
from outbox_core.adapters.mongo.effect_documents import new_row_document
from outbox_core.adapters.mongo.effect_reading import ReadingRows
from outbox_core.adapters.mongo.effect_settling import SettlingRows
from outbox_core.adapters.mongo.errors import DUPLICATE_KEY
from outbox_core.adapters.mongo.inserts import insert_all
from outbox_core.domain.errors import (
    InvalidInputError,
    RowsRefusedError,
    UnstorableRowError,
)
from outbox_core.domain.identity import require_own
from outbox_core.domain.payload import json_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from outbox_core.domain.effect import NewEffect


class MongoEffectOutbox(ClaimingRows, SettlingRows, ReadingRows):
    """Implements ports.effect_outbox.EffectOutbox: materialize here, the rest by what it does."""

    def check(self, effect: NewEffect) -> None:
        """See the port."""
        require_own(self._tenant, effect.tenant_id, "a row")
        try:
            if effect.attributes is not None:
                effect.attributes.require_storable("what rules match")
            if effect.trace:
                json_bytes(dict(effect.trace), "the trace")
        except InvalidInputError as error:
            raise UnstorableRowError(str(error)) from error

    def materialize(self, effects: Sequence[NewEffect], now: datetime) -> frozenset[str]:
        """See the port."""
        for effect in effects:
            require_own(self._tenant, effect.tenant_id, "a row")
        inserted: set[str] = set()
        refused: dict[str, str] = {}
        for start in range(0, len(effects), self._limits.command_rows):
            documents = [new_row_document(effect, now) for effect in effects[start : start + self._limits.command_rows]]
            rejections = insert_all(self._rows, documents)
            for rejection in rejections:
                if (rejection.code, rejection.key) != (DUPLICATE_KEY, ("_id",)):
                    refused[documents[rejection.index]["_id"]] = rejection.reason
            known = {rejection.index for rejection in rejections}
            inserted |= {document["_id"] for index, document in enumerate(documents) if index not in known}
        if refused:
            raise RowsRefusedError(refused, frozenset(inserted))
        return frozenset(inserted)
