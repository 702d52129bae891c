"""Every verb's `--help` shows every word that was written for it."""

import inspect
import re

import pytest

from tests.commands.test_fuzzed_arguments import VERBS
from tests.support.commands import call


def words(text: str) -> set[str]:
    return {word.strip("`│ ") for word in inspect.cleandoc(text).split()} - {""}


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.path))
def test_help_shows_every_word(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    done = call(*verb.path, "--help")
    assert done.code == 0 and done.err == ""
    shown = words(done.out)
    for parameter in verb.parameters:
        assert parameter.help, f"{' '.join(verb.path)} {parameter.name} is not explained"
        assert words(parameter.help) <= shown, (parameter.name, words(parameter.help) - shown)
        assert parameter.help.endswith((".", "…")), parameter.help
    assert not re.search(r"\[\[\w|\{\{", done.out)
