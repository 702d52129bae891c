"""Ctrl-C at any moment: one line and exit code 130, never a traceback, never lost."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.waiting import PATIENCE_S

PROGRAM = "import os, signal, sys; sys.argv = ['rollout-assets', 'source', 'build', sys.argv[1], '--workers', '1']\n"
INTERRUPT = "os.kill(os.getpid(), signal.SIGINT)"
MOMENTS = {
    "while typer is loaded": f"""
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'typer':
            {INTERRUPT}
sys.meta_path.insert(0, Finder())
""",
    "while a verb is loaded by a package that swallows it": f"""
import rollout_assets.cli as cli
def load(verb):
    try:
        {INTERRUPT}
    except BaseException:
        pass
cli.load_verb = load
""",
    "while it works": f"""
import rollout_assets.synthetic.store as store
store.build_synthetic_store = lambda *args, **options: {INTERRUPT}
""",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interrupt_is_one_line_and_exit_code_130(moment, tmp_path):
    program = f"{PROGRAM}{MOMENTS[moment]}\nfrom rollout_assets.__main__ import main\nmain()"
    command = [sys.executable, "-c", program, str(tmp_path / "homes")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_ignores_interrupts_continues(tmp_path):
    """A shell lets programs in the background ignore Ctrl-C, which is for the one in front."""
    used = "import os, signal\nfrom rollout_assets.interruption import stop_at_once, when_interrupted\n"
    program = f"{used}with when_interrupted(stop_at_once): {INTERRUPT}"
    ignoring = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    ended = subprocess.run([sys.executable, "-c", program], preexec_fn=ignoring, timeout=PATIENCE_S)
    assert ended.returncode == 0


def test_the_module_is_the_program():
    shown = subprocess.run([sys.executable, "-m", "rollout_assets", "--version"], capture_output=True, text=True)
    assert shown.stdout.startswith("rollout-assets ") and os.linesep in shown.stdout
