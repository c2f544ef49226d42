"""Which entries a config selects: the names real msProbe collected for the same config, and our own rules."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from windtunnel.probe.config.merged_config import ProbeConfig, load_config
from windtunnel.probe.config.selection import Selection

RUNNER = Path(__file__).parents[1] / "parity" / "msprobe_run.py"


@pytest.fixture
def make(tmp_path):
    """A config from the keys of its file."""

    def make_config(framework: str = "pytorch", **keys: object) -> ProbeConfig:
        path = tmp_path / "config.json"
        path.write_text(json.dumps({"dump_path": str(tmp_path / "dump"), **keys}))
        return load_config(framework, path)

    return make_config


# ------------------------------------------------------------------ one step of the model of msprobe_run.py
# A text is an API, a pair a module and what runs inside it; in the order things run.


def _block(name: str, number: int) -> tuple:
    return (
        f"{name}.Block",
        [
            (f"{name}.fc.Linear", [f"Functional.linear.{number}"]),
            (f"{name}.act.ReLU", [f"Functional.relu.{number}"]),
            f"Tensor.__mul__.{number}",
        ],
    )


FORWARD = [
    _block("Module.a", 0),
    "Tensor.__add__.0",
    _block("Module.b", 1),
    ("Module.c.Linear", ["Functional.linear.2"]),
    "Torch.sigmoid.0",
    "Tensor.sum.0",
]
LEVEL_OF = {"L0": ("Module.",), "L1": ("Functional.", "Tensor.", "Torch."), "mix": ("",)}


@dataclass
class Run:
    """Plays the step to a Selection as the hooks do: it asks as a thing begins, and tells when it has ended."""

    selection: Selection
    level: str

    def names(self) -> set[str]:
        self.found: set[str] = set()
        self._play(FORWARD, (), "forward")
        self._play(FORWARD[::-1], (), "backward")
        return self.found

    def _play(self, events: list, parents: tuple[str, ...], way: str) -> None:
        for event in events:
            if isinstance(event, str):
                self._entry(f"{event}.{way}", parents)
                continue
            module, inside = event
            name = f"{module}.{way}.0"
            begun = self._asks(name) and self.selection.wants(name, parents)
            self._play(inside if way == "forward" else inside[::-1], (*parents, name), way)
            if way == "backward" and module.endswith("Linear"):
                self._entry(f"{module}.parameters_grad.0", (*parents, name))
            ended = self._asks(name) and self.selection.leave(name, parents)
            if begun or ended:
                self.found.add(name)

    def _entry(self, name: str, parents: tuple[str, ...]) -> None:
        if self._asks(name) and self.selection.wants(name, parents if self.level != "L1" else ()):
            self.found.add(name)

    def _asks(self, name: str) -> bool:
        return name.startswith(LEVEL_OF[self.level])


SCOPE_A_TO_B = ["Module.a.Block.forward.0", "Module.b.Block.forward.0"]
INSIDE_A = {
    "Module.a.Block.forward.0",
    "Module.a.fc.Linear.forward.0",
    "Functional.linear.0.forward",
    "Module.a.act.ReLU.forward.0",
    "Functional.relu.0.forward",
    "Tensor.__mul__.0.forward",
}
INSIDE_B = {
    "Module.b.fc.Linear.forward.0",
    "Functional.linear.1.forward",
    "Module.b.act.ReLU.forward.0",
    "Functional.relu.1.forward",
    "Tensor.__mul__.1.forward",
}
BACK_INSIDE_A = {
    "Module.a.Block.backward.0",
    "Module.a.act.ReLU.backward.0",
    "Module.a.fc.Linear.backward.0",
    "Module.a.fc.Linear.parameters_grad.0",
    "Tensor.__mul__.0.backward",
    "Functional.relu.0.backward",
    "Functional.linear.0.backward",
}


def _linears(ways: str, apis: bool = True) -> set[str]:
    modules = ["Module.a.fc.Linear", "Module.b.fc.Linear", "Module.c.Linear"]
    names = {f"{module}.{way}.0" for module in modules for way in ways.split()}
    return names | {
        f"Functional.linear.{n}.{way}" for n in range(3) for way in ("forward", "backward") if apis
    }


# level, section, names real msProbe 26.2.0 collected, names we add and it loses (the reason stands beside it)
CASES = {
    "list of a module's backward holds what runs inside": (
        "mix",
        {"list": ["Module.a.Block.backward.0"]},
        BACK_INSIDE_A,
        set(),
    ),
    "list of a module by a part of its name": (
        "mix",
        {"list": ["Module.a"]},
        INSIDE_A | BACK_INSIDE_A,
        set(),
    ),
    "list of a class of modules": (
        "mix",
        {"list": ["Linear"]},
        _linears("forward backward parameters_grad"),
        set(),
    ),
    "list of APIs in mix": (
        "mix",
        {"list": ["linear", "relu"]},
        {f"Functional.linear.{n}.{way}" for n in range(3) for way in ("forward", "backward")}
        | {f"Functional.relu.{n}.{way}" for n in range(2) for way in ("forward", "backward")},
        set(),
    ),
    "scope over two modules": (
        "mix",
        {"scope": SCOPE_A_TO_B},
        {*INSIDE_A, "Tensor.__add__.0.forward", "Module.b.Block.forward.0"},
        INSIDE_B,  # msProbe closes a mix scope as its last module begins; at L0 as it ends
    ),
    "scope from a module to an API": (
        "mix",
        {"scope": ["Module.a.act.ReLU.forward.0", "Functional.linear.1.forward"]},
        {
            "Module.a.act.ReLU.forward.0",
            "Functional.relu.0.forward",
            "Tensor.__mul__.0.forward",
            "Module.a.Block.forward.0",  # ends inside the scope
            "Tensor.__add__.0.forward",
            "Module.b.Block.forward.0",  # begins inside it
            "Module.b.fc.Linear.forward.0",
            "Functional.linear.1.forward",
        },
        set(),
    ),
    "scope over backward": (
        "mix",
        {"scope": ["Module.c.Linear.backward.0", "Module.b.Block.backward.0"]},
        {
            "Module.c.Linear.backward.0",
            "Functional.linear.2.backward",
            "Module.c.Linear.parameters_grad.0",
            "Module.b.Block.backward.0",
            "Tensor.__mul__.1.backward",
            "Module.b.act.ReLU.backward.0",
            "Functional.relu.1.backward",
            "Module.b.fc.Linear.backward.0",
            "Functional.linear.1.backward",
            "Module.b.fc.Linear.parameters_grad.0",
        },
        set(),
    ),
    "scope and list": (
        "mix",
        {"scope": SCOPE_A_TO_B, "list": ["relu"]},
        {"Functional.relu.0.forward"},
        {"Functional.relu.1.forward"},  # inside the last module, as above
    ),
    "scope of modules": (
        "L0",
        {"scope": ["Module.a.fc.Linear.forward.0", "Module.b.fc.Linear.forward.0"]},
        {
            "Module.a.fc.Linear.forward.0",
            "Module.a.act.ReLU.forward.0",
            "Module.a.Block.forward.0",
            "Module.b.Block.forward.0",
            "Module.b.fc.Linear.forward.0",
        },
        set(),
    ),
    "scope inside one module leaves the module itself out": (
        "L0",
        {"scope": ["Module.a.fc.Linear.forward.0", "Module.a.act.ReLU.forward.0"]},
        {"Module.a.fc.Linear.forward.0", "Module.a.act.ReLU.forward.0"},
        set(),
    ),
    "scope from forward to backward": (
        "L0",
        {"scope": ["Module.b.act.ReLU.forward.0", "Module.b.fc.Linear.backward.0"]},
        {
            "Module.b.act.ReLU.forward.0",
            "Module.b.Block.forward.0",
            "Module.c.Linear.forward.0",
            "Module.c.Linear.parameters_grad.0",
            "Module.c.Linear.backward.0",
            "Module.b.act.ReLU.backward.0",
            "Module.b.fc.Linear.parameters_grad.0",
            "Module.b.fc.Linear.backward.0",
        },
        {"Module.b.Block.backward.0"},  # begins inside the scope; msProbe asks only as a backward ends
    ),
    "list of a module at L0 does not expand": (
        "L0",
        {"list": ["Module.a.Block.forward.0"]},
        {"Module.a.Block.forward.0"},
        set(),
    ),
    "list of modules' forward": (
        "L0",
        {"list": ["Linear.forward"]},
        _linears("forward", apis=False),
        set(),
    ),
    "list of modules' backward": (
        "L0",
        {"list": ["Linear.backward"]},
        _linears("backward", apis=False),
        _linears("parameters_grad", apis=False),  # lost when they come before the backward, kept when after
    ),
    "scope of APIs": (
        "L1",
        {"scope": ["Functional.relu.0.forward", "Functional.relu.1.forward"]},
        {
            "Functional.relu.0.forward",
            "Tensor.__mul__.0.forward",
            "Tensor.__add__.0.forward",
            "Functional.linear.1.forward",
            "Functional.relu.1.forward",
        },
        set(),
    ),
    "scope and list of APIs": (
        "L1",
        {
            "scope": ["Functional.linear.2.forward", "Functional.relu.1.backward"],
            "list": ["linear", "sigmoid"],
        },
        {
            "Functional.linear.2.forward",
            "Torch.sigmoid.0.forward",
            "Torch.sigmoid.0.backward",
            "Functional.linear.2.backward",
        },
        set(),
    ),
    "a module's name selects no API at L1": ("L1", {"list": ["Module.a"]}, set(), set()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_config_selects_what_msprobe_collects(make, case):
    level, section, seen, lost_by_msprobe = CASES[case]
    config = make(level=level, statistics=section)
    assert Run(Selection(config), level).names() == seen | lost_by_msprobe


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("msprobe") is None, reason="msProbe is not installed")
@pytest.mark.parametrize("case", CASES)
def test_the_table_is_what_real_msprobe_collects(tmp_path, case):
    level, section, seen, _ = CASES[case]
    config = json.dumps({"level": level, "statistics": section})
    subprocess.run([sys.executable, str(RUNNER), config, str(tmp_path)], check=True, capture_output=True)
    assert set(json.loads((tmp_path / "names.json").read_text())) == seen


def test_without_filters_every_entry_is_wanted(make):
    selection = Selection(make(level="mix"))
    assert selection.is_open
    assert Run(selection, "mix").names() >= INSIDE_A | INSIDE_B | BACK_INSIDE_A
    assert selection.leave("Module.a.Block.forward.0")


def test_a_scope_closes_without_leave_when_something_outside_begins(make):
    selection = Selection(make(level="mix", statistics={"scope": SCOPE_A_TO_B}))
    assert selection.has_scope
    assert not selection.wants("Torch.ones.0.forward")
    assert selection.wants("Module.a.Block.forward.0")
    assert selection.wants("Module.b.Block.forward.0")
    assert selection.wants("Functional.relu.1.forward", ["Module.b.Block.forward.0"])
    assert not selection.wants("Torch.sigmoid.0.forward")
    assert not selection.wants("Functional.relu.2.forward", ["Module.b.Block.forward.0"])


def test_a_scope_that_was_not_closed_ends_with_the_step(make):
    selection = Selection(
        make(level="L1", statistics={"scope": ["Torch.a.0.forward", "Torch.never.0.forward"]})
    )
    for _ in range(2):
        assert not selection.wants("Torch.b.0.forward")
        assert selection.wants("Torch.a.0.forward")
        assert selection.wants("Torch.c.0.forward")
        selection.new_step()


def test_globs_and_expressions_select_by_whole_name_and_by_search(make):
    selection = Selection(make(statistics={"list": ["Functional.*.forward", "re:^Torch\\.(mm|bmm)\\."]}))
    assert selection.wants("Functional.relu.3.forward")
    assert not selection.wants("Functional.relu.3.backward")
    assert selection.wants("Torch.bmm.0.backward")
    assert not selection.wants("Torch.addmm.0.forward")
    static = Selection(make("mindspore", level="L2", statistics={"list": ["name-regex(Default/.+)"]}))
    assert static.wants("Default/Conv2D-op1")
    assert not static.wants("Other/Default/Conv2D-op1")


def test_dots_and_brackets_of_plain_names_are_plain(make):
    selection = Selection(make(statistics={"list": ["Tensor.add."]}))
    assert selection.wants("Tensor.add.0.forward")
    assert not selection.wants("Tensor.addmm.0.forward")
    assert Selection(make(statistics={"list": ["m[0]*"]})).wants("m[0].forward")


def test_tensor_list_saves_what_it_names_and_the_tensor_task_saves_all(make):
    selection = Selection(make(level="mix", statistics={"tensor_list": ["relu.0", "act.ReLU.forward"]}))
    assert selection.is_open
    wanted = ("Functional.relu.0.forward", "Functional.relu.0.backward", "Module.b.act.ReLU.forward.0")
    assert all(selection.wants_tensor(name) for name in wanted)
    assert not selection.wants_tensor("Functional.relu.1.forward")
    assert not selection.wants_tensor("Module.b.act.ReLU.backward.0")
    assert Selection(make(task="tensor")).wants_tensor("Torch.mm.0.forward")
    assert not Selection(make()).wants_tensor("Torch.mm.0.forward")


PARTS = ("forward_input", "forward_output", "backward_input", "backward_output", "parameter_gradients")


@pytest.mark.parametrize(
    ("modes", "parts"),
    [
        ([], PARTS),
        (["all"], PARTS),
        (["forward"], PARTS[:2]),
        (["backward"], PARTS[2:]),
        (["input"], ("forward_input", "backward_input", "parameter_gradients")),
        (["forward", "output"], ("forward_output",)),
        (["backward", "output"], ("backward_output", "parameter_gradients")),
        (["forward", "backward", "input"], ("forward_input", "backward_input", "parameter_gradients")),
        (["forward", "backward", "input", "output"], PARTS),
    ],
)
def test_data_mode_names_sides_and_directions(make, modes, parts):
    selection = Selection(make(statistics={"data_mode": modes}))
    assert tuple(part for part in PARTS if getattr(selection, part)) == parts


@pytest.mark.parametrize(
    ("prefix", "api", "kept_at"),
    [
        ("Functional", "linear", "ALL FOCUS CORE"),  # msProbe loses it at CORE through a missing comma
        ("Torch", "matmul", "ALL FOCUS CORE"),
        ("Tensor", "__matmul__", "ALL FOCUS CORE"),
        ("Tensor", "gather", "ALL FOCUS CORE"),  # shares its name with a collective
        ("Distributed", "all_reduce", "ALL FOCUS CORE"),
        ("NPU", "npu_rms_norm", "ALL FOCUS CORE"),
        ("MyOps", "fused_thing", "ALL FOCUS CORE"),  # registered by the user
        ("Functional", "relu", "ALL FOCUS"),
        ("Tensor", "__mul__", "ALL FOCUS"),
        ("Torch", "erfcx", "ALL FOCUS"),
        ("Tensor", "clamp_", "ALL FOCUS"),
        ("Tensor", "t", "ALL FOCUS"),  # msProbe keeps it, though it drops transpose
        ("Tensor", "__setitem__", "ALL FOCUS"),
        ("Tensor", "view", "ALL"),
        ("Torch", "cat", "ALL"),
        ("Tensor", "clamp", "ALL"),
        ("Tensor", "__getitem__", "ALL"),
        ("Tensor", "T", "ALL"),
        ("Tensor", "new_zeros", "ALL"),
        ("Tensor", "permute", "ALL"),
    ],
)
def test_risk_levels_keep(make, prefix, api, kept_at):
    levels = [
        level
        for level in ("ALL", "FOCUS", "CORE")
        if Selection(make(risk_level=level)).wants_api(prefix, api)
    ]
    assert levels == kept_at.split()


def test_risk_levels_say_nothing_when_the_user_names_what_to_collect(make):
    assert Selection(make(risk_level="CORE", statistics={"list": ["view"]})).wants_api("Tensor", "view")
    scope = ["Tensor.view.0.forward", "Tensor.view.1.forward"]
    assert Selection(make(risk_level="CORE", statistics={"scope": scope})).wants_api("Tensor", "view")
    assert Selection(make("mindspore")).wants_api("Tensor", "view")
    assert Selection(make(level="L2")).wants_api("Tensor", "view")
    assert not Selection(make(level="mix")).wants_api("Tensor", "view")


def test_an_api_list_keeps_its_apis_and_what_no_list_can_name(make, tmp_path):
    path = tmp_path / "ops.yaml"
    path.write_text("functional:\n  - relu\ntorch:\n  - linalg.norm\n")
    selection = Selection(make(api_list=str(path)))
    assert selection.wants_api("Functional", "relu")
    assert selection.wants_api("Torch", "norm")
    assert not selection.wants_api("Tensor", "relu")
    assert not selection.wants_api("Functional", "gelu")
    assert selection.wants_api("MyOps", "fused_thing")
    assert Selection(make(api_list=str(path), level="L2")).wants_api("Functional", "gelu")


def test_every_api_msprobe_lists_is_kept_at_the_levels_msprobe_keeps_it(make):
    levels = pytest.importorskip("msprobe.pytorch.dump.api_dump.api_risk_level")
    yaml = pytest.importorskip("yaml")
    listed = yaml.safe_load(Path(levels.__file__).with_name("support_wrap_ops.yaml").read_text())
    focus, core = Selection(make()), Selection(make(risk_level="CORE"))
    prefixes = {
        "functional": "Functional",
        "tensor": "Tensor",
        "torch": "Torch",
        "distributed": "Distributed",
    }
    differ = set()
    for section, prefix in prefixes.items():
        for api in {name.split(".")[-1] for name in listed[section]}:
            level = levels.get_api_risk_level(api)
            if focus.wants_api(prefix, api) != (level != "LOW"):
                differ.add(("FOCUS", prefix, api))
            if core.wants_api(prefix, api) != (level == "CORE"):
                differ.add(("CORE", prefix, api))
    # The names a missing comma joins there.
    assert {api for _, _, api in differ} <= {"linear", "chain_matmul"}
