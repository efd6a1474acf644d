"""The demo's boards: what people do on them, what a machine does, and how both end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox_core import Match
from outbox_core.domain.subscription import Subscription

if TYPE_CHECKING:
    from examples.demo_target import Target
    from outbox_core import Outbox
    from outbox_core.boards import Boards

COLUMNS = ("todo", "doing", "done")
MANY = 20
PEOPLES_MOVES = 1
PROJECTIONS = PEOPLES_MOVES + MANY
MODEL = "demo_team.cards"
GO = "go"


def board_rules(tenant: str) -> list[tuple[str, Subscription, int]]:
    """Return rules, what each shows, and how many effects it must be owed."""

    def rule(sub_id: str, bot_id: str, action: str, **more: object) -> Subscription:
        match = Match(sources=("board",), types=("card",), actions=(action,), labels=(GO,) if more else ())
        words = {"words": {"pump": "hardware"}} if bot_id == "label-by-title" else {}
        folder = {"folder": "one-shots"} if bot_id == "file-it" else {}
        return Subscription(
            tenant_id=tenant,
            sub_id=sub_id,
            bot_id=bot_id,
            match=match,
            vars={**words, **folder},
            consume_labels=(GO,) if more else (),
        )

    return [
        ("labels by a card's title", rule("titles", "label-by-title", "created"), 2 + MANY),
        ("spends a one-shot label", rule("one-shot", "file-it", "labeled", spends=True), 2),
        ("moved by people alone", rule("moves", "print-it", "moved"), PEOPLES_MOVES),
    ]


def play_boards(boards: Boards, target: Target) -> None:
    """Bind two boards, change cards as people do, and rename a column with many cards, which launches nothing."""
    for name in ("pumps", "valves"):
        boards.create_board(name, COLUMNS)
    boards.bind("pumps", "post-move", target.url("/moves"))
    boards.bind("valves", "mirror", MODEL)
    for name in ("p1", "p2"):
        boards.create_card("pumps", f"Pump {name} runs dry", card_id=name, author="ada")
        boards.label_card(name, add=[GO, "urgent"], author="ada")
    for number in range(MANY):
        boards.create_card("valves", f"Valve {number} leaks", card_id=f"v{number}", author="ada")
    boards.move_card("p1", "doing", author="ada", reason="it is urgent")
    boards.rename_column("valves", "todo", "next", author="ada")


def told_boards(outbox: Outbox, tenant: str, target: Target) -> bool:
    """Print what became of the boards; say whether it is as it must be."""
    boards = outbox.boards(tenant)
    labels = {name: boards.card(name).labels for name in ("p1", "p2")}
    database, _, collection = MODEL.partition(".")
    mirrored = outbox.run_in_transaction(
        tenant,
        lambda reading: reading.database.client[database][collection].count_documents(
            {"column": "next"}, session=reading.session
        ),
    )
    posted = len([path for path, _ in target.posts if path == "/moves"])
    print(f"\nboards: p1 and p2 carry {', '.join(labels['p1'])}; the one-shot {GO!r} is spent")
    print(f"        a column with {MANY} cards was renamed: {mirrored} mirrored, none launched; {posted} move posted")
    return (
        all(set(found) == {"urgent", "hardware"} for found in labels.values())
        and mirrored == MANY
        and posted == PEOPLES_MOVES
    )
