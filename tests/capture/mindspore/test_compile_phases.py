"""The phases that MindSpore's compiler prints, out of a program's output."""

from __future__ import annotations

from windtunnel.capture.mindspore.compile_phases import CompilePhases, compile_profile

OUTPUT = """hello
windtunnel: begin to compile Net
[WARNING] something
TotalTime = 2.0, [3]
[parse]: 0.5
[bootstrap]: 1e-05
[optimize]: 1.25, [1]
    [opt_a]: 1.2
Sums
    parse : 0.5s : 25.00%

Time group info:
------[others.] 0.1 3
windtunnel: end of compile
[parse]: 9.9
windtunnel: begin to compile step
windtunnel: end of compile
bye"""


def test_phases_are_taken_out_of_the_output():
    phases = CompilePhases()
    own = [line for line in OUTPUT.splitlines() if not phases.listen(line)]
    assert own == ["hello", "[WARNING] something", "[parse]: 9.9", "bye"]
    assert phases.found == [("Net", "parse", 500_000), ("Net", "optimize", 1_250_000)]


def test_the_users_settings_of_the_compiler_stay():
    assert compile_profile("") == {"MS_JIT": "COMPILE_PROFILE:1"}
    assert compile_profile("1,COMPILE_PROFILE:0,X:2") == {"MS_JIT": "1,X:2,COMPILE_PROFILE:1"}
