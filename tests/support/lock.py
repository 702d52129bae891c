"""The marks of infra/constraints.txt: which pinned packages the demo installs, and which the tests install too.

``python -m tests.support.lock`` writes them anew from what the installed packages require.
"""

import re
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

CONSTRAINTS = Path(__file__).resolve().parents[2] / "infra" / "constraints.txt"
DEMO = (("rollout-assets", frozenset({"platform", "reports", "second-opinion"})), ("hatchling", frozenset()))
"""What infra/demo installs: the package with some extras, and what builds its editable install."""

TESTS = (*DEMO, ("rollout-assets", frozenset({"dev"})))


def normal_name(name: str) -> str:
    """Name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(roots: Iterable[tuple[str, frozenset[str]]]) -> set[str]:
    """Return every package that some packages with their extras require, directly or not."""
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = list(roots)
    while waiting:
        name, extras = waiting.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        for requirement in map(Requirement, distribution(name).requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append((normal_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in seen} - {"rollout-assets", "setuptools"}


def marked_lines() -> list[str]:
    """Return the lines of the file with the marks that they should have."""
    demo, tests = required(DEMO), required(TESTS)
    lines = []
    for line in CONSTRAINTS.read_text().splitlines():
        pin = line.split("#")[0].rstrip()
        name = normal_name(pin.split("==")[0])
        lines.append(f"{pin}  # demo" if name in demo else f"{pin}  # test" if name in tests else pin)
    return lines


if __name__ == "__main__":
    CONSTRAINTS.write_text("\n".join(marked_lines()) + "\n")
