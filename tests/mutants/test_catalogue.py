"""The list of mutants fits the code as it is: one that does not apply any more proves nothing."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest

from tests.mutants.mutant import Mutant, load
from tests.promises import guaranteed

ROOT = Path(__file__).parents[2]
MUTANTS = load()

each = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


def program(code: CodeType) -> list[object]:
    """What a text does, without its lines and comments: quicker than to compare two trees."""
    inner = [program(one) if isinstance(one, CodeType) else (type(one), one) for one in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, inner]


@each
def test_a_mutant_applies_in_one_place_and_is_another_program(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text("utf-8")
    before, after = compile(text, mutant.file, "exec"), compile(mutant.applied_to(text), mutant.file, "exec")
    assert program(after) != program(before)


def test_mutants_name_tests_that_exist() -> None:
    named = {test for mutant in MUTANTS for test in mutant.tests}
    assert all(mutant.tests for mutant in MUTANTS)
    defined = {file: (ROOT / file).read_text("utf-8") for file in {test.partition("::")[0] for test in named}}
    for test in named:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in defined[file], test


def test_mutants_have_names_of_their_own_say_what_they_break_and_name_promises_that_are_given() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert sorted(names) == sorted(set(names))
    assert all(mutant.breaks and mutant.promises for mutant in MUTANTS)
    assert {one for mutant in MUTANTS for one in mutant.promises} <= set(guaranteed(ROOT))


def test_a_change_that_does_not_apply_in_just_one_place_is_refused() -> None:
    mutant = Mutant(name="m", breaks="b", file="f.py", old="a", new="b", promises=("E01",), tests=("t.py",))
    assert mutant.applied_to("x = a") == "x = b"
    for text in ("x = 1", "a = a"):
        with pytest.raises(ValueError, match="not once"):
            mutant.applied_to(text)
