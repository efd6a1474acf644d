"""From nothing to settled effects on real parts: `make demo`, or `python -m examples.demo`.

Starts a private replica set, a broker, workers, a beat and Flower; subscribes eleven bots; takes in GitHub deliveries
and changes two boards; waits until every effect is settled; prints what became of each, and ends with 0 only if all of
it is as it must be.

    DEMO_INPUT=FILE  other deliveries than the project's own, one JSON object a line
    DEMO=stay        keep everything running afterwards, until Ctrl-C
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.demo_board import PROJECTIONS, board_rules, play_boards, told_boards
from examples.demo_target import Target
from outbox_core import Match, Outbox
from outbox_core.application.add_subscription import add_subscription
from outbox_core.application.ingest_delivery import ingest_delivery
from outbox_core.application.tenant_stats import TenantStats, tenant_stats
from outbox_core.cli.opening import apply_schema
from outbox_core.cli.output import print_table, say
from outbox_core.cli.stack import Stack
from outbox_core.cli.stopping import StopRequested, stop_signals, undisturbed
from outbox_core.domain.errors import OutboxError
from outbox_core.domain.forge_delivery import Delivery
from outbox_core.domain.subscription import Subscription
from outbox_core.sources.github_lines import check_lines, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from outbox_core.application.run_in_transaction import OutboxTransaction
    from outbox_core.sources.lines import Checked

TENANT = "demo"
OWN_INPUT = Path(__file__).with_name("github_deliveries.jsonl")
MOST_SECONDS = 90.0
STAY = "stay"

# Shorter than a deployment's, so that retries are seen within seconds.
SETTINGS = {
    "OUTBOX_BOTS": "examples.bots,examples.projectors",
    "OUTBOX_DRAIN_TICK": "1s",
    "OUTBOX_SWEEP_TICK": "1s",
    "OUTBOX_BACKOFF_BASE": "500ms",
}


@dataclass(frozen=True)
class Rule:
    """What is owed effects, a subscription or a bound board: what it shows, and how its rows must end.

    `ends` is `parked`, or an outcome of a done row; `matches` is how many rows there must be, where that is known.
    """

    shows: str
    subscription: Subscription | None
    ends: str
    matches: int | None = None

    @property
    def name(self) -> str:
        return self.subscription.sub_id if self.subscription else "(projection)"


def rules(target: Target) -> list[Rule]:
    def rule(shows: str, ends: str, sub_id: str, bot_id: str, match: Match, **variables: object) -> Rule:
        return Rule(
            shows, Subscription(tenant_id=TENANT, sub_id=sub_id, bot_id=bot_id, match=match, vars=variables), ends
        )

    later = {"every_seconds": 1}
    return [
        rule("a label", "delivered", "bugs", "file-it", Match(types=("issues",), labels=("bug",)), folder="bugs"),
        rule("a state", "delivered", "merged", "file-it", Match(subject_states=("merged",)), folder="merged"),
        rule("type and action", "delivered", "opened", "print-it", Match(sources=("board",), actions=("opened",))),
        rule(
            "fails, is retried",
            "delivered",
            "labeled",
            "call-back",
            Match(actions=("labeled",)),
            url=target.url("/flaky"),
        ),
        rule(
            "waits for its target",
            "delivered",
            "closed",
            "wait-for-target",
            Match(actions=("closed",)),
            url=target.url("/later"),
            **later,
        ),
        rule(
            "refused by its target",
            "parked",
            "comments",
            "call-back",
            Match(types=("issue_comment",)),
            url=target.url("/gone"),
        ),
        rule(
            "disabled meanwhile",
            "subscription_disabled",
            "paused",
            "wait-for-target",
            Match(types=("issues",)),
            url=target.url("/never"),
            **later,
        ),
        rule(
            "removed meanwhile",
            "subscription_not_found",
            "obsolete",
            "wait-for-target",
            Match(types=("pull_request",)),
            url=target.url("/never"),
            **later,
        ),
    ]


def main() -> int:
    given, mode = os.environ.get("DEMO_INPUT", ""), os.environ.get("DEMO", "")
    if mode not in {"", STAY}:
        return _refuse(f"DEMO={mode} says nothing; DEMO={STAY} keeps everything running afterwards")
    source = Path(given) if given else OWN_INPUT
    try:
        with source.open("rb") as stream:
            checked = check_lines(stream, secret=None)
    except OSError as error:
        return _refuse(f"{source} cannot be read: {error.strerror}")
    if checked.bad:
        return _refuse(*checked.errors)
    for name in [name for name in os.environ if name.startswith("OUTBOX_")]:
        del os.environ[name]  # The demo is by itself: it must never reach a real deployment.
    with stop_signals():
        return _in_a_folder(source, checked, own=not given, stay=mode == STAY)


def _refuse(*why: object) -> int:
    print("\n".join(f"demo: {_one_line(line)}" for line in why), file=sys.stderr)
    return 2


def _in_a_folder(source: Path, checked: Checked, *, own: bool, stay: bool) -> int:
    """Run in a folder that is gone afterwards, but for a failure, which names it."""
    folder = Path(tempfile.mkdtemp(prefix="outbox-demo-"))
    failed = True
    try:
        with Target() as target:
            failed = not _run(folder, target, source, checked, own=own, stay=stay)
        return int(failed)
    except StopRequested:
        failed = False
        print("demo: stopped", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        failed = False
        # Whoever read has gone; what is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OutboxError as error:
        print(f"demo: {_one_line(error)}", file=sys.stderr)
        return 1
    finally:
        with undisturbed():
            if failed:
                print(f"demo: the logs are in {folder}", file=sys.stderr)
            else:
                shutil.rmtree(folder, ignore_errors=True)


def _run(folder: Path, target: Target, source: Path, checked: Checked, *, own: bool, stay: bool) -> bool:
    """Return whether all of it is as it must be."""
    started = time.monotonic()
    stack = Stack(folder, workers=2, settings=SETTINGS, report=say)
    try:
        stack.start(before_programs=apply_schema)
        print(f"The stack runs after {time.monotonic() - started:.1f} s; Flower is at {stack.flower_url}\n")
        as_it_must = _play(stack, target, source, checked, own=own)
        print(f"{time.monotonic() - started:.1f} s in all.", flush=True)
        if stay:
            with suppress(StopRequested):
                _stay(stack)
    finally:
        stack.stop()
    return as_it_must


def _play(stack: Stack, target: Target, source: Path, checked: Checked, *, own: bool) -> bool:
    os.environ.update(stack.environment)
    outbox = Outbox.from_settings()
    try:
        store = outbox.tenant(TENANT)
        all_rules = [
            *rules(target),
            *(Rule(shows, rule, "delivered", matches) for shows, rule, matches in board_rules(TENANT)),
            Rule("a bound board's moves", None, "delivered", PROJECTIONS),
        ]
        for rule in all_rules:
            if rule.subscription:
                add_subscription(store, rule.subscription)
        taken = 0
        with source.open("rb") as stream:
            for line in read_lines(stream, secret=None):
                if isinstance(line.said, Delivery):
                    taken += ingest_delivery(store, outbox.runtime, line.said).fresh
        print(f"{taken} deliveries became events, {checked.deliveries - taken} came again,", end=" ")
        print(f"{checked.ignored.total()} concern no card: {_counted(checked.ignored)}\n")
        play_boards(outbox.boards(TENANT), target)

        # Their rows are queued: the bot asks to be retried later, since its target never comes up.
        settled = _wait(outbox, stack, "drained", lambda stats: stats.undrained == 0)
        store.subscriptions.set_enabled("paused", enabled=False)
        store.subscriptions.remove("obsolete")
        target.open_up()
        settled = settled and _wait(outbox, stack, "settled", lambda stats: stats.undrained == 0 and stats.live == 0)
        wrong = _told(outbox, all_rules, own=own)
        if not told_boards(outbox, TENANT, target):
            wrong.append("the board did not end as it must")
        stats = tenant_stats(store)
        if not settled:
            wrong.insert(0, f"{stats.undrained} events are not drained, {stats.live} effects not settled")
        effects = sum(stats.rows.values())
        verdict = f"all {stats.last_seq} events and {effects} effects are settled as expected"
        print("\n" + (f"NOT as expected: {'; '.join(wrong)}" if wrong else verdict))
        return not wrong
    finally:
        outbox.close()


def _wait(outbox: Outbox, stack: Stack, what: str, condition: Callable[[TenantStats], bool]) -> bool:
    """Wait, and show how far it is; False after MOST_SECONDS."""
    deadline = time.monotonic() + MOST_SECONDS
    shown = ""
    while time.monotonic() < deadline:
        stack.tend()
        stats = tenant_stats(outbox.tenant(TENANT))
        line = _progress(stats)
        if line != shown:
            print(f"\r\x1b[K{line}" if sys.stdout.isatty() else line, end="" if sys.stdout.isatty() else "\n")
            sys.stdout.flush()
            shown = line
        if condition(stats):
            if sys.stdout.isatty():
                print()
            return True
        time.sleep(0.3)
    print(f"\ndemo: not everything was {what} within {MOST_SECONDS:g} s", file=sys.stderr)
    return False


def _progress(stats: TenantStats) -> str:
    done = sum(count for state, count in stats.rows.items() if state.startswith("done"))
    return (
        f"  drained {stats.drained_seq} of {stats.last_seq} events; "
        f"{stats.live} effects live, {done} done, {stats.rows.get('failed', 0)} parked"
    )


def _told(outbox: Outbox, all_rules: list[Rule], *, own: bool) -> list[str]:
    """Print what became of each rule's effects; return what did not end as it must."""
    ends: dict[str, Counter[str]] = defaultdict(Counter)
    why: Counter[str] = Counter()
    tries: Counter[str] = Counter()
    for row in _rows(outbox):
        end = "parked" if row["state"] == "failed" else row.get("outcome") or row["state"]
        name = row["sub_id"] or f"({row['kind']})"
        ends[name][end] += 1
        tries[name] += row["attempts"] + (end == "delivered")
        if end != "delivered":
            why[f"parked, {_one_line(row['last_error'])}" if end == "parked" else f"dropped, {end}"] += 1
    table, wrong = [], []
    for rule in all_rules:
        sub_id = rule.name
        found = ends.pop(sub_id, Counter())
        right = set(found) <= {rule.ends} and bool(found or not own)
        right = right and rule.matches in {None, found.total()}
        if sub_id == "labeled":  # Each one failed once before it was delivered.
            right = right and tries[sub_id] == 2 * found.total()
        if not right:
            wrong.append(f"{sub_id} ended {_counted(found) or 'without effects'}, not {rule.ends}")
        launched, parked = found.get("delivered", 0), found.get("parked", 0)
        dropped = found.total() - launched - parked
        told = "ok" if right else f"not {rule.ends}"
        table.append((sub_id, rule.shows, found.total(), launched, dropped, parked, told))
    print()
    print_table(("subscription", "shows", "matched", "launched", "dropped", "parked", ""), table)
    print()
    for reason, count in sorted(why.items()):
        print(f"{count} {reason}")
    for reason, count in sorted(_skips(outbox).items()):
        print(f"{count} passed over by the drain, {reason}")
    return [
        *wrong,
        *(f"{found.total()} effects of {sub_id}, which is no subscription here" for sub_id, found in ends.items()),
    ]


def _rows(outbox: Outbox) -> Iterator[Mapping[str, Any]]:
    after = ""
    while page := outbox.tenant(TENANT).effects.list(after=after, limit=1_000):
        after = page[-1]["_id"]
        yield from page


def _skips(outbox: Outbox) -> Counter[str]:
    """Count, from the journal of the drain, the events that it passed over, by the reason."""

    def entries(reading: OutboxTransaction) -> list[Mapping[str, Any]]:
        """Read those in the journal, and the newest, which stand on the cursor still."""
        journal, cursors = reading.database["drain_journal"], reading.database["trigger_cursors"]
        cursor = cursors.find_one({"_id": TENANT}, session=reading.session) or {}
        return [*journal.find({"tenant_id": TENANT}, session=reading.session), *cursor.get("journal", ())]

    # An entry on its way from the one to the other stands in both.
    journal = outbox.run_in_transaction(TENANT, entries)
    reasons = {skip["seq"]: skip["reason"] for entry in journal for skip in entry["skips"]}
    return Counter(reasons.values())


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counter.items()))


def _stay(stack: Stack) -> None:
    print(f"\nFlower is at {stack.flower_url}. Look around with:\n")
    for name in ("OUTBOX_MONGO_URL", "OUTBOX_BROKER_URL"):
        print(f"export {name}='{stack.environment[name]}'")
    print(f".venv/bin/outbox effects list --tenant {TENANT}\n\nCtrl-C stops all of it.", flush=True)
    while True:
        time.sleep(0.5)
        stack.tend()


if __name__ == "__main__":
    sys.exit(main())
