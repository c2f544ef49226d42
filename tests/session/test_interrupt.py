"""Ctrl-C at any moment is one line and exit code 130: while modules are imported, and while processes are started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.commands.cli import COMMAND, PATIENCE_S, environment, read_json

# Loaded by Python before anything of ours: interrupts the process when it is about to import a module. What that
# process starts does not find the variable any more.
_SITE = """
import os, signal, sys
where = os.environ.pop("INTERRUPT_AT", None)

class Interrupting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == where:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting)
"""
_VERBS = {
    "run": ["run", "train.py"],
    "remat": ["remat", "train.py"],
    "replay": ["replay", "snapshot.pickle"],
    "compare": ["compare", "a", "b"],
    "view": ["view", "out"],
    "devices": ["devices"],
}


def _listen():
    """A shell starts background jobs with SIGINT ignored, and these tests may be one of them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(command, folder, **variables):
    (folder / "train.py").write_text("print('ran')\n")
    done = subprocess.run(
        command, cwd=folder, env=environment(**variables), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=PATIENCE_S, check=False, preexec_fn=_listen,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("verb", _VERBS)
@pytest.mark.parametrize("module", ["windtunnel.commands.command_line", "windtunnel.commands.{verb}"])
def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path, verb, module):
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_SITE)
    path = ":".join([str(site), *sys.path[1:]])
    variables = {"INTERRUPT_AT": module.format(verb=verb), "PYTHONPATH": path}
    assert _run([*COMMAND, *_VERBS[verb]], tmp_path, **variables) == (130, "", "windtunnel: interrupted\n")


def test_an_interrupt_in_a_package_that_swallows_exceptions_is_heard(tmp_path):
    """Packages are imported with the handler of the program in place, which raises nothing."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        _SITE.replace("class Interrupting", "where = 'rich.text'\nclass Interrupting")
    )
    (site / "rich").mkdir()
    (site / "rich" / "__init__.py").write_text(
        "try:\n    import rich.text\nexcept BaseException:\n    pass\n"
    )
    path = ":".join([str(site), *sys.path[1:]])
    assert _run([*COMMAND, "devices"], tmp_path, PYTHONPATH=path) == (130, "", "windtunnel: interrupted\n")


def test_an_interrupt_while_a_process_is_started_leaves_one_line_and_no_run(tmp_path):
    program = (
        "import os, signal, subprocess, sys\n"
        "start = subprocess.Popen.__init__\n"
        "def interrupted(self, *args, **more):\n"
        "    start(self, *args, **more)\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "subprocess.Popen.__init__ = interrupted\n"
        "from windtunnel.commands.main import main\n"
        "sys.exit(main())\n"
    )
    found = _run([sys.executable, "-c", program, "run", "train.py"], tmp_path)
    assert found == (130, "", "windtunnel: interrupted\n")
    assert list((tmp_path / "windtunnel-out").iterdir()) == []


def test_an_interrupt_that_falls_into_a_destructor_is_heard(tmp_path):
    program = (
        "import os, signal, sys, time\n"
        "from windtunnel.commands import devices\n"
        "class Thing:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "def run(args):\n"
        "    Thing()\n"
        "    while True:\n"
        "        time.sleep(0.01)\n"
        "devices.run = run\n"
        "from windtunnel.commands.main import main\n"
        "sys.exit(main())\n"
    )
    found = _run([sys.executable, "-c", program, "devices"], tmp_path)
    assert found == (130, "", "windtunnel: interrupted\n")


_SCRIPT = """
import os, signal, time
import torch

class Thing:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

weight = torch.zeros(4, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
weight.sum().backward()
optimizer.step()
Thing()
while True:
    time.sleep(0.01)
"""


def test_a_rank_receives_an_interrupt_inside_a_destructor_and_keeps_its_step(tmp_path):
    (tmp_path / "loops.py").write_text(_SCRIPT)
    done = subprocess.run(
        [*COMMAND, "run", "loops.py"], cwd=tmp_path, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    rank = read_json(tmp_path / "windtunnel-out")["ranks"][0]
    assert (rank["error"], rank["steps"]) == ("the script itself raised KeyboardInterrupt", 1), (
        done.stdout + done.stderr
    )


def test_an_interrupt_waits_for_the_end_of_a_held_block():
    program = (
        "import os, signal, threading\n"
        "from windtunnel import interrupts\n"
        "interrupts.listen()\n"
        "done = []\n"
        "try:\n"
        "    with interrupts.held():\n"
        "        with interrupts.held():\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "            done.append(1)\n"
        "        done.append(2)\n"
        "    threading.Event().wait(60)\n"
        "except KeyboardInterrupt:\n"
        "    print(done)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.stdout, done.stderr) == ("[1, 2]\n", "")


def test_rows_are_on_disk_once_when_an_interrupt_falls_into_a_flush(tmp_path):
    """It arrives when the rows have been taken from the list and are not yet written."""
    program = (
        "import os, signal, sys\n"
        "import pyarrow\n"
        "from pathlib import Path\n"
        "from windtunnel import interrupts\n"
        "from windtunnel.events.file import RecordingWriter, read_recording\n"
        "interrupts.listen()\n"
        "path = Path(sys.argv[1])\n"
        "writer = RecordingWriter(path, {})\n"
        "make = pyarrow.record_batch\n"
        "def interrupted(*args, **more):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return make(*args, **more)\n"
        "pyarrow.record_batch = interrupted\n"
        "for kind in (1, 2):\n"
        "    writer.rows.append((kind, 0, 0, 0, 0, 0, 0, 0, 0, 0, (), ()))\n"
        "try:\n"
        "    writer.flush()\n"
        "    raise SystemExit('the interrupt was lost')\n"
        "except KeyboardInterrupt:\n"
        "    pyarrow.record_batch = make\n"
        "    writer.close({})\n"
        "print(len(read_recording(path)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "recording.arrows")],
        capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("2\n", "")
