"""A headless campaign as JUnit XML: one suite per run, one case for the run itself and one per check."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from rollout_assets.defs.headless import HeadlessResult, RunOutcome

_NOT_XML = dict.fromkeys(code for code in range(32) if chr(code) not in "\t\n\r")


def write_junit(result: HeadlessResult, path: Path) -> None:
    """Write the file; a warning is a passed case with its evidence as output."""
    root = ElementTree.Element("testsuites", name=result.campaign, time=f"{result.seconds:.3f}")
    for run in result.runs:
        root.append(_suite(result.campaign, run))
    ElementTree.indent(root)
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _suite(campaign: str, run: RunOutcome) -> ElementTree.Element:
    name, seconds = f"{campaign}.{run.name}", f"{run.seconds:.3f}"
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(1 + len(run.checks)),
        failures=str(len(run.failed_checks("ERROR"))),
        errors=str(int(not run.ok)),
        time=seconds,
    )
    case = ElementTree.SubElement(suite, "testcase", classname=name, name="run", time=seconds)
    if not run.ok:
        _add_message(case, "error", run.error)
    for check in run.checks:
        case = ElementTree.SubElement(suite, "testcase", classname=f"{name}.{check.asset}", name=check.check, time="0")
        if not check.passed and check.level == "ERROR":
            _add_message(case, "failure", check.evidence)
        elif not check.passed:
            ElementTree.SubElement(case, "system-out").text = f"warning: {check.evidence}".translate(_NOT_XML)
    return suite


def _add_message(case: ElementTree.Element, tag: str, message: str) -> None:
    lines = (message or "no message").translate(_NOT_XML)
    ElementTree.SubElement(case, tag, message=lines.splitlines()[0]).text = lines
