"""Input lines become requests: template, agent, parameters, indices, repeats and seeds, all written out.

A line expands in place (a b c with two repeats: a a b b c c). A task is a root, so that agents can be compared on it:
lines of the same source row and target share a task unless they give a ``_task_index`` of their own. Rollouts are
counted per task and agent, and a seed is derived from the run's seed, the task and the rollout, so that rollout n of
every agent of a task is offered the same views. Lines are read twice, the second time one by one: everything wrong is
reported together before anything runs, and memory does not grow with the file.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rollout_assets.collection.configs import RolloutCollectionConfig
from rollout_assets.config import RolloutRecipeConfig, canonical_json
from rollout_assets.config.problems import validation_problems
from rollout_assets.errors import CollectionError, ConfigError, InputsRefused
from rollout_assets.metrics.columns import ROLLOUT, TASK, RolloutId
from rollout_assets.parsing import parse_json, parse_toml, read_text_file, refuse_deep, refuse_special_file
from rollout_assets.randomness import key_digest
from rollout_assets.rollouts.remote.messages import AgentRef, RolloutRequest

_PROBLEMS_SHOWN = 50


Root = tuple[str | int | None, str | int]
"""A source row and a target, as a request names them."""


@dataclass(frozen=True)
class NumberedRequest:
    """A request with its agent and both indices, and the input line it came from."""

    line: int
    request: RolloutRequest


def numbered_requests(config: RolloutCollectionConfig) -> Iterator[NumberedRequest]:
    """All requests of a collection in input order; bad lines are one ``InputsRefused`` before the first request."""
    lines = InputLines(config)
    lines.check()
    return lines.expanded()


def _root_of(request: RolloutRequest) -> Root:
    return request.sample_key if request.sample_key is not None else request.source_row, request.target


def request_key(request: RolloutRequest) -> RolloutId:
    """Agent, task and rollout of a request that has them all."""
    assert request.agent_name is not None and request.task_index is not None and request.rollout_index is not None
    return request.agent_name, request.task_index, request.rollout_index


def request_json(request: RolloutRequest) -> bytes:
    """A request as one canonical JSON line, newline included; equal requests give equal bytes."""
    return canonical_json(request.model_dump(mode="json", by_alias=True, exclude_defaults=True)) + b"\n"


def read_requests(path: Path) -> Iterator[RolloutRequest]:
    """Requests of a materialized file, as they were written; anything else is a ``CollectionError`` with its place."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                request = RolloutRequest.model_validate_json(line)
                request_key(request)
            except (ValidationError, AssertionError):
                raise CollectionError(
                    f"{path}:{number}: is not a request as a collection writes it; restore the file, "
                    f"or collect into another output"
                ) from None
            yield request


def collection_seed(run_seed: int, task: int, rollout: int) -> int:
    """Seed of one rollout of one task, the same for every agent; below 2**63."""
    return int.from_bytes(key_digest(run_seed, task, rollout, "collection")[:8], "big") >> 1


class InputLines:
    """The lines of an input file under a collection's configuration."""

    def __init__(self, config: RolloutCollectionConfig) -> None:
        self._config = config
        self._path = config.input_jsonl_fpath
        self._template = read_template(config.prompt_config)
        self._own_tasks: set[int] = set()
        self._has_own_rollouts = False
        self._agents: set[str] = set()
        self._stored: dict[tuple[Root, str | None], int] = {}

    def check(self) -> None:
        """Read every line and report everything that is wrong, with file and line."""
        found: list[tuple[int, str]] = []
        number = 0
        for number, line in self._lines():
            try:
                request = self._request(line)
                self._repeats(request)
                self._note(request)
                self._refuse_second_in_store(number, request)
            except ValidationError as error:
                found += [(number, str(problem)) for problem in validation_problems(error, RolloutRequest)]
            except ValueError as error:
                found.append((number, str(error)))
        if not number:
            raise ConfigError(f"{self._path}: no requests; 'rollout-assets collect --write-requests' writes some")
        if not found:
            self._refuse_unknown_agents()
        if not found and self._has_own_rollouts:
            found = self._duplicates()
        if found:
            raise self._refusal(found)

    def expanded(self) -> Iterator[NumberedRequest]:
        """Requests with agent, indices, parameters and seed; a line's repeats follow each other."""
        free_tasks = (task for task in count() if task not in self._own_tasks)
        tasks: defaultdict[Root, int] = defaultdict(lambda: next(free_tasks))
        rollouts: Counter[tuple[int, str | None]] = Counter()
        for number, line in self._lines():
            request = self._request(line)
            root = _root_of(request)
            task = tasks[root] if request.task_index is None else request.task_index
            for _ in range(self._repeats(request)):
                counted = task, request.agent_name
                rollout = rollouts[counted] if request.rollout_index is None else request.rollout_index
                rollouts[counted] += request.rollout_index is None
                changes: dict[str, Any] = {"task_index": task, "rollout_index": rollout}
                if self._config.num_repeats_add_seed:
                    changes["seed"] = collection_seed(self._config.run_seed, task, rollout)
                yield NumberedRequest(number, request.model_copy(update=changes))

    def _note(self, request: RolloutRequest) -> None:
        """Remember what a line names itself."""
        self._has_own_rollouts |= request.rollout_index is not None
        if request.task_index is not None:
            self._own_tasks.add(request.task_index)
        if request.agent_name is not None:
            self._agents.add(request.agent_name)

    def _refuse_second_in_store(self, number: int, request: RolloutRequest) -> None:
        """Raise ``ValueError`` for a second rollout of a root and recipe: a store holds one, whatever its seed."""
        if self._config.store_dir is not None:
            first = self._stored.setdefault((_root_of(request), request.agent_name), number)
            if first != number:
                raise ValueError(
                    f"is of the same root and recipe as line {first}, and a store holds one rollout of them; "
                    f"leave one of the two out, or store_dir"
                )

    def _refuse_unknown_agents(self) -> None:
        """Raise if ``num_repeats`` names an agent that no line has; lines beyond the limit count."""
        named = self._config.agents_with_repeats
        if not named <= self._agents and self._config.limit is not None:
            self._agents |= {agent for _, line in self._lines(limited=False) if (agent := self._agent_of(line))}
        if unknown := sorted(named - self._agents):
            raise ConfigError(
                f"num_repeats names agent {', '.join(map(repr, unknown))}, which no request of {self._path} has; "
                f"its agents are {', '.join(sorted(self._agents))}"
            )

    def _agent_of(self, line: bytes) -> str | None:
        """The agent of a line that is not run; one that could not be run has none."""
        try:
            return self._request(line).agent_name
        except ValueError:
            return None

    def _lines(self, *, limited: bool = True) -> Iterator[tuple[int, bytes]]:
        """Line numbers and lines, empty ones left out, up to the limit."""
        try:
            refuse_special_file(self._path)
            with self._path.open("rb") as stream:
                numbered = ((number, line) for number, line in enumerate(stream, start=1) if line.strip())
                yield from islice(numbered, self._config.limit if limited else None)
        except FileNotFoundError as error:
            raise ConfigError(f"{self._path}: {error.strerror}; it must hold one JSON object a line") from None

    def _request(self, line: bytes) -> RolloutRequest:
        """A line with the template under it, the parameters over it, and its agent by name."""
        config = self._config
        try:
            given = parse_json(line)
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(given, dict):
            raise ValueError(f"a request must be a JSON object, got {type(given).__name__}")
        filled = self._filled(given)
        _refuse_unwritable(filled)
        request = RolloutRequest.model_validate(filled)
        agent = request.agent_name or config.agent_name
        if agent is None:
            raise ValueError("no agent: give agent_ref or recipe in the line, or agent_name for all lines")
        changes: dict[str, Any] = {}
        if config.store_dir is not None:
            if request.params.max_views_scored is not None:
                raise ValueError(
                    "a store holds rollouts that ran to their end; leave out max_views_scored or store_dir"
                )
            changes["include"] = tuple(dict.fromkeys((*request.include, "record")))
        if not isinstance(request.recipe, RolloutRecipeConfig):
            changes |= {"recipe": None, "agent_ref": AgentRef(name=agent)}
        return request.model_copy(update=changes)

    def _filled(self, given: Mapping[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in given.items() if value is not None}
        template = {name: value for name, value in self._template.items() if not _instead(name, given)}
        layers = (template.get("params"), given.get("params"), self._config.responses_create_params)
        layered = (item for layer in layers if isinstance(layer, Mapping) for item in layer.items())
        params = {name: value for name, value in layered if value is not None}
        own = given.get("params", {})
        return {**template, **given, "params": params if isinstance(own, Mapping) else own}

    def _repeats(self, request: RolloutRequest) -> int:
        agent = request.agent_name
        assert agent is not None
        repeats = self._config.repeats_of(agent)
        if repeats is None:
            raise ValueError(f"num_repeats says nothing about agent {agent!r}; name it, or give _default")
        if repeats > 1 and request.rollout_index is not None:
            raise ValueError(f"gives {ROLLOUT} {request.rollout_index}, but would be repeated {repeats} times")
        return repeats

    def _refusal(self, found: list[tuple[int, str]]) -> InputsRefused:
        shown = [f"{self._path}:{number}: {problem}" for number, problem in found[:_PROBLEMS_SHOWN]]
        more = [f"and {len(found) - _PROBLEMS_SHOWN} more"] if len(found) > _PROBLEMS_SHOWN else []
        return InputsRefused(str(self._path), shown + more, len({number for number, _ in found}))

    def _duplicates(self) -> list[tuple[int, str]]:
        seen: dict[RolloutId, int] = {}
        problems = []
        for numbered in self.expanded():
            agent, task, rollout = key = request_key(numbered.request)
            first = seen.setdefault(key, numbered.line)
            if first != numbered.line:
                twice = f"{TASK} {task} {ROLLOUT} {rollout} of agent {agent!r} is also on line {first}"
                problems.append((numbered.line, twice))
        return problems


def _refuse_unwritable(given: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for what cannot be sent to a server or written into a file as it is."""
    refuse_deep(given)
    try:
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds half a character: {error.object[error.start]!a}; write whole ones") from None


def read_template(source: Path | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """A request template from a mapping, or from a JSON or TOML file."""
    if source is None or isinstance(source, Mapping):
        return _checked_template(source or {}, "prompt_config")
    is_toml = source.suffix == ".toml"
    try:
        text = read_text_file(source)
        return _checked_template(parse_toml(text) if is_toml else parse_json(text), str(source))
    except FileNotFoundError as error:
        raise ConfigError(f"{source}: {error.strerror}; prompt_config must be a JSON or TOML file") from None
    except ValueError as error:
        raise ConfigError(f"{source}: not valid {'TOML' if is_toml else 'JSON'}: {error}") from None


def _checked_template(template: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(template, Mapping):
        raise ConfigError(f"{where}: a request template must be an object, got {type(template).__name__}")
    allowed = {name for name in RolloutRequest.model_fields if not name.endswith("_index")}
    unknown = sorted(set(template) - allowed)
    if unknown:
        raise ConfigError(
            f"{where}: unknown key {', '.join(unknown)}; a template may give {', '.join(sorted(allowed))}"
        )
    return template


_ALTERNATIVES = ({"sample_key", "source_row"}, {"recipe", "agent_ref"})


def _instead(name: str, given: Mapping[str, Any]) -> bool:
    """Whether a line gives the alternative of a template's field."""
    return any(name in pair and pair & set(given) for pair in _ALTERNATIVES)
