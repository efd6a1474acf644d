"""Every OUTBOX_* variable with hostile text: settings whose limits hold together, or one line that names it."""

from __future__ import annotations

import os
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox_core.domain.errors import ConfigurationError
from outbox_core.domain.limits import Limits
from outbox_core.settings import load_settings, variable_names
from tests.fuzz.hostile import SECRET, TEXTS, require_one_clear_line
from tests.fuzz.profile import inputs, tried

pytestmark = [
    pytest.mark.promise("O06", "O07"),
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),
]

URLS = (
    f"mongodb://ada:{SECRET}@127.0.0.1:port/",
    f"mongodb://ada:{SECRET}@[::1/",
    f"http://ada:{SECRET}@there/",
    f"redis://:{SECRET}@there:99999/0",
    f"redis://:{SECRET}@[there/0",
    f"sentinel://:{SECRET}@a;sentinel://b:x",
    f"amqp://ada:{SECRET}@there//",
    f'{{"shop": "whsec_{SECRET}"}}',
    f'{{"shop": ["whsec_{SECRET}"]}}',
    f'{{"whsec_{SECRET}',
    '{"shop": 7}',
    '["whsec_"]',
    "[" * 3_000,
)
WORDS = ("0", "-1", "1e9s", "9" * 13, "9" * 5_000, "10 s", "1.5.5s", "\u0661\u0662s", "inf", "nan", "ms", "0.0000001ms")
SWITCHES = ("on", "OFF", "yes", "0.0.0.0/0", "10.0.0.0/99", "*", "a..b", "shop.bots,", "os;", "import os", "../x")


def placeable(text: str) -> bool:
    """Say whether an environment can hold it."""
    return "\0" not in text and "\ud800" not in text


texts = st.sampled_from([text for text in (*TEXTS, *URLS, *WORDS, *SWITCHES) if placeable(text)]) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12
)
variables = st.dictionaries(st.sampled_from(variable_names()), texts, min_size=1, max_size=3)
numbers = st.integers(0, 10**6).map(lambda number: f"{number}ms")
limits = st.dictionaries(st.sampled_from([name for name in variable_names() if len(name) > 12]), numbers, max_size=3)


@inputs(150)
@given(given_variables=variables | limits)
def test_hostile_variables_give_settings_that_hold_together_or_are_named_in_one_line(
    given_variables: dict[str, str],
) -> None:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("OUTBOX_")}
    with patch.dict(os.environ, {**kept, **given_variables}, clear=True):
        try:
            settings = load_settings()
        except ConfigurationError as error:
            refused = error
        else:
            tried["settings: taken"] += 1
            Limits(**{name: getattr(settings.limits, name) for name in Limits.__slots__})
            assert SECRET not in repr(settings)
            return
    tried["settings: refused"] += 1
    require_one_clear_line(refused, most=4_000)
    said = str(refused)
    assert any(name in said or name.removeprefix("OUTBOX_") in said for name in given_variables), said
