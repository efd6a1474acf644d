"""The registry of bots, and the modules that fill it."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from outbox_core.bots import BotRegistry, bot, load_bots, projector, projectors, registry
from outbox_core.domain.bot import Bot
from outbox_core.domain.errors import ConfigurationError, InvalidInputError
from outbox_core.domain.limits import Limits
from outbox_core.domain.projector import Projector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from outbox_core import Projection, Run


@pytest.fixture(autouse=True)
def registry_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_bots", dict(registry._bots))
    monkeypatch.setattr(projectors, "_projectors", dict(projectors._projectors))


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def act(run: Run, **given: object) -> None:
    del run, given


def test_a_registered_function_is_found_by_its_id_and_is_left_as_it_is() -> None:
    registered = bot("file", transactional=True, time_limit=timedelta(seconds=20))(act)
    assert registered is act
    assert registry.get("file") == Bot(
        bot_id="file", function=act, transactional=True, time_limit=timedelta(seconds=20)
    )
    assert registry.get("other") is None


def test_two_bots_of_one_id_are_refused_and_both_places_are_named() -> None:
    bot("twice")(act)

    def another(run: Run) -> None:
        del run

    with pytest.raises(ConfigurationError, match=r"'twice'.*act.*another"):
        bot("twice")(another)
    assert registry.get("twice") == Bot(bot_id="twice", function=act)


def test_a_module_that_is_imported_anew_replaces_its_bots(modules: Path) -> None:
    (modules / "again_bots.py").write_text("from outbox_core import bot\n@bot('again')\ndef act(run): ...\n")
    load_bots(["again_bots"])
    first = registry.get("again")
    del sys.modules["again_bots"]
    load_bots(["again_bots"])
    assert registry.get("again") != first


async def asynchronous(run: Run) -> None:
    del run


def generator(run: Run) -> Iterator[Run]:
    yield run


def without_a_run() -> None:
    pass


@pytest.mark.promise("O06")
@pytest.mark.parametrize("function", [asynchronous, generator, without_a_run, 7])
def test_what_cannot_be_a_bot_is_refused_when_it_is_registered(function: Callable[..., object]) -> None:
    with pytest.raises(ConfigurationError, match="'odd'"):
        bot("odd")(function)
    assert registry.get("odd") is None


@pytest.mark.promise("O06")
def test_an_id_that_is_none_and_a_limit_that_is_none_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="bot id"):
        bot("two words")(act)
    with pytest.raises(ConfigurationError, match="time_limit"):
        bot("hasty", time_limit=timedelta(0))(act)


@pytest.mark.promise("E06")
def test_a_bots_limit_above_the_deployments_is_refused_by_name() -> None:
    own = BotRegistry()
    own.add(Bot(bot_id="slow", function=act, transactional=True, time_limit=timedelta(seconds=46)))
    with pytest.raises(ConfigurationError, match=r"'slow'.*TRANSACTIONAL_TIME_LIMIT"):
        own.check(Limits())
    other = BotRegistry()
    other.add(Bot(bot_id="slower", function=act, time_limit=timedelta(hours=2)))
    with pytest.raises(ConfigurationError, match=r"'slower'.*MAX_TIME_LIMIT"):
        other.check(Limits())


def test_the_longest_limit_is_the_largest_of_the_bots_or_the_deployments() -> None:
    own = BotRegistry()
    assert own.longest_limit(Limits()) == timedelta(seconds=60)
    own.add(Bot(bot_id="slow", function=act, time_limit=timedelta(minutes=5)))
    own.add(Bot(bot_id="quick", function=act, time_limit=timedelta(seconds=1)))
    assert own.longest_limit(Limits()) == timedelta(minutes=5)


@pytest.mark.promise("O06")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "there is no module broken_bots"),
        ("import nothing_of_that_name", "broken_bots needs the missing module nothing_of_that_name"),
        ("1 / 0", "broken_bots does not import: ZeroDivisionError: division by zero"),
        ("def act(:", "broken_bots does not import: SyntaxError"),
    ],
)
def test_a_module_that_does_not_import_is_one_clear_line(text: str | None, said: str, modules: Path) -> None:
    if text is not None:
        (modules / "broken_bots.py").write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_bots(["broken_bots"])
    assert str(caught.value).startswith("OUTBOX_BOTS: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_importing_the_package_or_its_domain_loads_no_driver_and_its_names_are_there_when_asked() -> None:
    program = """
import sys
import outbox_core, outbox_core.domain.effect
heavy = {"pymongo", "bson", "pydantic", "celery", "redis"} & set(sys.modules)
assert not heavy, heavy
from outbox_core import RetryLater, bot
assert "pymongo" not in sys.modules
try:
    outbox_core.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise SystemExit("no error")
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def reflect(move: Projection) -> None:
    del move


def test_a_registered_projector_is_found_by_its_kind_and_is_left_as_it_is() -> None:
    assert projector("wall")(reflect) is reflect
    assert projectors.get("wall") == Projector(kind="wall", function=reflect)
    assert projectors.get("other") is None
    projector("wall")(reflect)
    assert [one.kind for one in projectors].count("wall") == 1


def test_two_projectors_of_one_kind_are_refused_and_both_places_are_named() -> None:
    projector("wall")(reflect)

    def another(move: object) -> None:
        del move

    with pytest.raises(ConfigurationError, match=r"'wall'.*reflect.*another"):
        projector("wall")(another)
    assert projectors.get("wall") == Projector(kind="wall", function=reflect)


def test_what_cannot_be_a_projector_is_refused() -> None:
    async def late(move: object) -> None:
        del move

    with pytest.raises(ConfigurationError, match=r"projector 'wall': .* neither async nor a generator"):
        projector("wall")(late)
    with pytest.raises(ConfigurationError, match="must take the move as its first argument"):
        projector("wall")(lambda: None)
    with pytest.raises(InvalidInputError, match="projector kind"):
        projector("no kind")(reflect)
    assert projectors.get("wall") is None
