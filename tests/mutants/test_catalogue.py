"""The list of mutants fits the code as it is: one that does not apply any more proves nothing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant, load
from tests.promises import guaranteed

ROOT = Path(__file__).parents[2]
MUTANTS = load()

each = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@each
def test_a_mutant_applies_in_one_place_and_is_another_program(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text("utf-8")
    assert ast.dump(ast.parse(mutant.applied_to(text))) != ast.dump(ast.parse(text))


@each
def test_a_mutant_names_tests_that_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        told = ast.parse((ROOT / file).read_text("utf-8"))
        names = {node.name for node in ast.walk(told) if isinstance(node, ast.FunctionDef)}
        assert not name or name in names, test


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
