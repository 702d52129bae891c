"""Input lines become rows: template, agent, parameters, indices, repeats and seeds, all written out.

A line expands in place (a b c with two repeats: a a b b c c). A task is a root, so that agents can be compared on it:
lines of the same source row and target share a task unless they give a ``_task_index`` of their own. Lines are read
twice, the second time one by one: everything wrong is reported together before anything runs, and memory does not grow
with the file.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollout_assets.collection.configs import RolloutCollectionConfig
from rollout_assets.config import RolloutRecipeConfig, canonical_json
from rollout_assets.errors import ConfigError, InputsRefused
from rollout_assets.metrics.columns import ROLLOUT, TASK, RolloutId
from rollout_assets.randomness import key_digest
from rollout_assets.rollouts.remote.messages import AgentRef, RolloutRequest, request_problems

_PROBLEMS_SHOWN = 50


@dataclass(frozen=True)
class NumberedRequest:
    """A row to run, with its agent and both indices given, and the input line it came from."""

    line: int
    row: RolloutRequest

    @property
    def key(self) -> RolloutId:
        """Agent, task and rollout."""
        row = self.row
        assert row.agent_name is not None and row.task_index is not None and row.rollout_index is not None
        return row.agent_name, row.task_index, row.rollout_index


def numbered_requests(config: RolloutCollectionConfig) -> Iterator[NumberedRequest]:
    """All rows of a collection in input order; bad lines are one ``InputsRefused`` before the first row."""
    lines = InputLines(config)
    lines.check()
    return lines.expanded()


def request_json(row: RolloutRequest) -> bytes:
    """A row as one canonical JSON line, newline included; equal rows give equal bytes."""
    return canonical_json(row.model_dump(mode="json", by_alias=True, exclude_defaults=True)) + b"\n"


def read_requests(path: Path) -> Iterator[NumberedRequest]:
    """Rows of a materialized file, as they were written."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            yield NumberedRequest(number, RolloutRequest.model_validate_json(line))


def collection_seed(run_seed: int, task: int, rollout: int) -> int:
    """Seed of one rollout of one task; below 2**63."""
    return int.from_bytes(key_digest(run_seed, task, rollout, "collection")[:8], "big") >> 1


class InputLines:
    """The lines of an input file under a collection's configuration."""

    def __init__(self, config: RolloutCollectionConfig) -> None:
        self._config = config
        self._path = config.input_jsonl_fpath
        self._template = read_template(config.prompt_config)
        self._given: set[int] = set()

    def check(self) -> None:
        """Read every line and report everything that is wrong, with file and line."""
        problems: list[str] = []
        count = 0
        for number, line in self._lines():
            count += 1
            try:
                row = self._row(line)
                self._repeats(row)
                if row.task_index is not None:
                    self._given.add(row.task_index)
            except ValueError as error:
                problems += [f"{self._path}:{number}: {problem}" for problem in _told(error)]
        if not problems and self._given:
            problems += self._duplicates()
        if len(problems) > _PROBLEMS_SHOWN:
            problems[_PROBLEMS_SHOWN:] = [f"and {len(problems) - _PROBLEMS_SHOWN} more"]
        if problems:
            raise InputsRefused(str(self._path), problems)
        if not count:
            raise ConfigError(f"{self._path}: no rows; 'rollout-assets collect --from-campaign' writes some")

    def expanded(self) -> Iterator[NumberedRequest]:
        """Rows with agent, indices, parameters and seed; a line's repeats follow each other."""
        numbers = _TaskNumbers(self._given)
        rollouts: Counter[int] = Counter()
        for number, line in self._lines():
            row = self._row(line)
            task = numbers.of(row)
            for _ in range(self._repeats(row)):
                rollout = rollouts[task] if row.rollout_index is None else row.rollout_index
                rollouts[task] += row.rollout_index is None
                changes: dict[str, Any] = {"task_index": task, "rollout_index": rollout}
                if self._config.num_repeats_add_seed:
                    changes["seed"] = collection_seed(self._config.run_seed, task, rollout)
                yield NumberedRequest(number, row.model_copy(update=changes))

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Line numbers and lines, empty ones left out, up to the limit."""
        left = self._config.limit
        try:
            with self._path.open("rb") as stream:
                for number, line in enumerate(stream, start=1):
                    if left == 0:
                        return
                    if line.strip():
                        yield number, line
                        left = None if left is None else left - 1
        except (FileNotFoundError, IsADirectoryError) as error:
            raise ConfigError(f"{self._path}: {error.strerror}; it must be a file of one JSON row a line") from None

    def _row(self, line: bytes) -> RolloutRequest:
        """A line with the template under it, the parameters over it, and its agent by name."""
        config = self._config
        try:
            given = json.loads(line)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(given, dict):
            raise ValueError(f"a row must be a JSON object, got {type(given).__name__}")
        filled = self._filled(given)
        row = RolloutRequest.model_validate(filled)
        agent = row.agent_name or config.agent_name
        if agent is None:
            raise ValueError("no agent: give agent_ref or recipe in the line, or agent_name for all lines")
        changes: dict[str, Any] = {}
        if config.store_dir is not None:
            changes["include"] = tuple(dict.fromkeys((*row.include, "record")))
        if not isinstance(row.recipe, RolloutRecipeConfig):
            changes |= {"recipe": None, "agent_ref": AgentRef(name=agent)}
        return row.model_copy(update=changes)

    def _filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        template = {name: value for name, value in self._template.items() if not _instead(name, given)}
        layers = (template.get("params"), given.get("params"), self._config.responses_create_params)
        params = {name: value for layer in layers if isinstance(layer, Mapping) for name, value in layer.items()}
        wrong = given.get("params", {})
        return {**template, **given, "params": params if isinstance(wrong, Mapping) else wrong}

    def _repeats(self, row: RolloutRequest) -> int:
        agent = row.agent_name
        assert agent is not None
        repeats = self._config.repeats_of(agent)
        if repeats is None:
            raise ValueError(f"num_repeats says nothing of agent {agent!r}; name it, or give _default")
        if repeats > 1 and row.rollout_index is not None:
            raise ValueError(f"gives {ROLLOUT} {row.rollout_index}, but is to be repeated {repeats} times")
        return repeats

    def _duplicates(self) -> list[str]:
        seen: dict[RolloutId, int] = {}
        problems = []
        for numbered in self.expanded():
            first = seen.setdefault(numbered.key, numbered.line)
            if first != numbered.line:
                agent, task, rollout = numbered.key
                problems.append(
                    f"{self._path}:{numbered.line}: {TASK} {task} {ROLLOUT} {rollout} of agent {agent!r} "
                    f"is also on line {first}"
                )
        return problems


class _TaskNumbers:
    """Task indices by first appearance, around those that lines give themselves."""

    def __init__(self, given: set[int]) -> None:
        self._given, self._next = given, 0
        self._numbers: dict[tuple[str | int | None, str | int], int] = {}

    def of(self, row: RolloutRequest) -> int:
        if row.task_index is not None:
            return row.task_index
        root = (row.sample_key if row.sample_key is not None else row.source_row, row.target)
        if root not in self._numbers:
            while self._next in self._given:
                self._next += 1
            self._numbers[root] = self._next
            self._next += 1
        return self._numbers[root]


def read_template(given: Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A row template from a mapping, or from a JSON or TOML file."""
    if given is None or isinstance(given, Mapping):
        return _checked_template(given or {}, "prompt_config")
    try:
        text = given.read_text("utf-8")
        return _checked_template(tomllib.loads(text) if given.suffix == ".toml" else json.loads(text), str(given))
    except OSError as error:
        raise ConfigError(f"{given}: {error.strerror}; prompt_config must be a JSON or TOML file") from None
    except ValueError as error:
        kind = "TOML" if given.suffix == ".toml" else "JSON"
        raise ConfigError(f"{given}: not valid {kind}: {error}") from None


def _checked_template(template: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(template, Mapping):
        raise ConfigError(f"{where}: a row template must be an object, got {type(template).__name__}")
    known = {name for name in RolloutRequest.model_fields if not name.endswith("_index")}
    unknown = sorted(set(template) - known)
    if unknown:
        raise ConfigError(f"{where}: unknown key {', '.join(unknown)}; a template may give {', '.join(sorted(known))}")
    return template


_ALTERNATIVES = ({"sample_key", "source_row"}, {"recipe", "agent_ref"})


def _instead(name: str, given: Mapping[str, Any]) -> bool:
    """Whether a line gives the alternative of a template's field."""
    return any(name in pair and pair & set(given) for pair in _ALTERNATIVES)


def _told(error: ValueError) -> list[str]:
    if not isinstance(error, ValidationError):
        return [str(error)]
    return [str(problem) for problem in request_problems(error)]
