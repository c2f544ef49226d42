"""The public door of rematerialisation: settings, errors, environment, on and off."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import windtunnel.dtr as dtr
from windtunnel.errors import UsageError
from windtunnel.units import GIB, MIB

pytestmark = pytest.mark.filterwarnings("ignore:windtunnel.dtr. the threshold")  # low ones are what is tested


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Settings as if just imported, and off again afterwards, whatever a test did."""
    monkeypatch.setattr(dtr, "_control", dtr._Control({}))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    dtr.disable()
    torch.set_num_threads(before)


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        *[each for _ in range(8) for each in (torch.nn.Linear(128, 128), torch.nn.Tanh())]
    )


def _step(model):
    """Loss and gradients as bytes."""
    torch.manual_seed(1)
    loss = torch.nn.functional.dropout(model(torch.randn(64, 128)), 0.1).square().mean()
    loss.backward()
    found = [loss.detach().numpy().tobytes(), *(p.grad.numpy().tobytes() for p in model.parameters())]
    model.zero_grad()
    return found


def _in_use():
    return dtr._control.runtime.meter.live_bytes()


# -- settings -----------------------------------------------------------------------------------------------------


def test_the_defaults():
    assert dtr.eviction_threshold in (0, "0")
    assert dtr.evictee_minimum_size == MIB
    assert dtr.enable_sqrt_sampling is False
    assert dtr.policy == "ancestors"
    assert not dtr.is_enabled()


@pytest.mark.parametrize(
    ("written", "n_bytes"),
    [
        ("5GB", 5 * GIB),
        ("0.5GB", GIB // 2),
        ("512 MiB", 512 * MIB),
        ("2g", 2 * GIB),
        (1000, 1000),
        ("1000", 1000),
    ],
)
def test_thresholds_as_people_write_them(written, n_bytes):
    dtr.eviction_threshold = written
    assert dtr.eviction_threshold == written
    assert dtr._control.settings.threshold == n_bytes


def test_a_share_of_the_device():
    dtr.eviction_threshold = "80%"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert dtr._control.settings.threshold == int(total * 0.8)


@pytest.mark.parametrize("none", [0, None, "0"])
def test_no_threshold(none):
    dtr.eviction_threshold = "5GB"
    dtr.eviction_threshold = none
    assert dtr._control.settings.threshold is None


@pytest.mark.parametrize(
    "wrong",
    [".5GB", "-5GB", "1e3MB", "5GB 3MB", True, False, 3.5, -1, "", "5 apples", "120%", "-3%", [5], b"5GB"],
)
@pytest.mark.parametrize("name", ["eviction_threshold", "evictee_minimum_size"])
def test_wrong_sizes_are_refused_by_name(name, wrong):
    before = getattr(dtr, name)
    with pytest.raises(UsageError, match=name):
        setattr(dtr, name, wrong)
    assert getattr(dtr, name) == before


def test_the_smallest_evictee():
    dtr.evictee_minimum_size = "16KiB"
    assert dtr.evictee_minimum_size == 16384
    dtr.evictee_minimum_size = 0
    assert dtr.evictee_minimum_size == 0


@pytest.mark.parametrize("wrong", [1, 0, "yes", None])
def test_sampling_is_true_or_false(wrong):
    with pytest.raises(UsageError, match="enable_sqrt_sampling must be True or False"):
        dtr.enable_sqrt_sampling = wrong


def test_policies_have_names():
    assert {"dtr", "local", "lru", "largest", "contiguous"} <= set(dtr.policies())
    for name in dtr.policies():
        dtr.policy = name
        assert dtr.policy == name
    with pytest.raises(UsageError, match=r"there is no policy 'fifo' \(try one of dtr, "):
        dtr.policy = "fifo"


def test_a_misspelt_setting_is_an_error():
    with pytest.raises(AttributeError, match="no setting 'eviction_treshold'"):
        dtr.eviction_treshold = "5GB"
    with pytest.raises(AttributeError):
        dtr.eviction_treshold  # noqa: B018


def test_all_names_are_there():
    assert dtr.__all__ == sorted(dtr.__all__)
    for name in dtr.__all__:
        assert getattr(dtr, name) is not None


# -- environment --------------------------------------------------------------------------------------------------


def _imported(environment, program="import windtunnel.dtr as d; print(d.eviction_threshold, d.evictee_minimum_size,"
              " d.enable_sqrt_sampling, d.policy)"):  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=900,
    )


def test_the_environment_gives_defaults():
    done = _imported(
        {
            "WINDTUNNEL_DTR_EVICTION_THRESHOLD": "5GB",
            "WINDTUNNEL_DTR_EVICTEE_MINIMUM_SIZE": "64KiB",
            "WINDTUNNEL_DTR_ENABLE_SQRT_SAMPLING": "1",
            "WINDTUNNEL_DTR_POLICY": "lru",
        }
    )
    assert done.stdout == "5GB 65536 True lru\n"


@pytest.mark.parametrize(
    ("name", "wrong"), [("EVICTION_THRESHOLD", ".5GB"), ("ENABLE_SQRT_SAMPLING", "maybe"), ("POLICY", "fifo")]
)
def test_a_wrong_environment_says_so(name, wrong):
    done = _imported({f"WINDTUNNEL_DTR_{name}": wrong})
    assert done.returncode != 0
    assert wrong in done.stderr.splitlines()[-1]


def test_importing_the_door_does_not_import_torch():
    done = _imported({}, "import sys, windtunnel.dtr; print('torch' in sys.modules)")
    assert done.stdout == "False\n"


# -- on and off ---------------------------------------------------------------------------------------------------


def _torch_state():
    return (
        torch.autograd.Variable._execution_engine,
        torch.autograd.graph.disable_saved_tensors_hooks,
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        _get_current_dispatch_mode_stack(),
    )


def test_disable_leaves_torch_as_it_was():
    before = _torch_state()
    dtr.evictee_minimum_size = 4096
    for _ in range(3):
        dtr.enable()
        dtr.enable()
        assert dtr.is_enabled()
        dtr.eviction_threshold = _in_use() + 300_000
        _step(_model())
        assert _torch_state() != before
        dtr.disable()
        dtr.disable()
        assert not dtr.is_enabled()
        assert _torch_state() == before


def test_resting_far_below_the_limit_leaves_only_the_hooks():
    model = _model()
    expected = _step(model)
    dtr.evictee_minimum_size = 4096
    dtr.enable()
    dtr.eviction_threshold = "100GB"
    assert _step(model) == expected
    assert _get_current_dispatch_mode_stack() == []
    dtr.eviction_threshold = _in_use() + 6 * 64 * 128 * 4  # a lower one wakes it up
    for _ in range(3):
        assert _step(model) == expected
    assert dtr.stats()["evictions"] > 0


def test_limit_sets_a_threshold_for_a_while():
    model = _model()
    expected = _step(model)
    before = _torch_state()
    dtr.evictee_minimum_size = 4096
    dtr.enable()
    dtr.disable()
    dtr.eviction_threshold = "5GB"
    with dtr.limit(_in_use() + 10 * 64 * 128 * 4):
        assert dtr.is_enabled()
        assert _step(model) == expected
    assert dtr.stats()["rematerialisations"] > 0
    assert dtr.eviction_threshold == "5GB"
    assert not dtr.is_enabled()
    assert _torch_state() == before


def test_limit_inside_enable_and_after_an_error():
    dtr.enable()
    dtr.eviction_threshold = "7GB"
    with pytest.raises(ZeroDivisionError), dtr.limit("5GB"):
        raise ZeroDivisionError
    assert dtr.is_enabled()
    assert dtr.eviction_threshold == "7GB"
    with pytest.raises(UsageError), dtr.limit("-5GB"):
        pass
    assert dtr.eviction_threshold == "7GB"


def test_a_threshold_set_while_enabled_holds_at_once():
    dtr.evictee_minimum_size = 4096
    dtr.enable()
    dtr.eviction_threshold = "100GB"
    model = _model()
    x = torch.randn(64, 128)
    x = model[:8](x)
    assert dtr.stats()["evictions"] == 0
    dtr.eviction_threshold = _in_use() - 1
    x = model[8:](x)
    assert dtr.stats()["evictions"] > 0
    x.sum().backward()


# -- what it tells ------------------------------------------------------------------------------------------------


def test_statistics_before_anything_happened():
    assert set(dtr.stats().values()) == {0}


def test_statistics_add_up():
    dtr.evictee_minimum_size = 4096
    dtr.enable()
    dtr.eviction_threshold = _in_use() + 20 * 64 * 128 * 4
    for _ in range(3):
        _step(_model())
    found = dtr.stats()
    assert found["evictions"] > 0
    assert found["evicted_bytes"] >= found["evictions"] * 4096
    assert found["rematerialised_bytes"] == found["rematerialisations"] * 64 * 128 * 4
    assert found["overhead_seconds"] == found["eviction_seconds"] + found["rematerialisation_seconds"] > 0
    assert found["peak_live_bytes"] > 0


def test_a_threshold_below_what_cannot_be_evicted_is_reported_once_with_the_number():
    dtr.evictee_minimum_size = 4096
    dtr.enable()
    dtr.eviction_threshold = 1000
    model = _model()
    with pytest.warns(
        UserWarning, match=r"threshold of 1000 B is below what cannot be evicted: [\d.]+ [KM]iB"
    ):
        _step(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "windtunnel.dtr: the threshold of 1000 B made")
        _step(model)
    assert dtr.stats()["least_reached_bytes"] > 1000


def test_costs_are_written_for_the_simulator(tmp_path):
    from windtunnel.timing.cost import CostTable, cost_key

    path = tmp_path / "costs.json"
    with pytest.raises(UsageError, match="nothing has been measured"):
        dtr.save_costs(path)
    dtr.evictee_minimum_size = 4096
    dtr.enable()
    _step(_model())
    dtr.save_costs(path)
    assert CostTable.from_json(path.read_text()).find(cost_key("aten.tanh.default", [(64, 128)])) > 0


def test_weights_above_the_threshold_are_told_though_nothing_could_be_evicted():
    model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(8)])
    weights = sum(parameter.nbytes for parameter in model.parameters())
    with pytest.warns(UserWarning, match="is below what cannot be evicted"), dtr.limit(weights // 2):
        model(torch.ones(2, 256)).sum().backward()
    assert dtr.stats()["least_reached_bytes"] >= weights
    assert dtr.stats()["peak_live_bytes"] >= weights


class _Full(torch.autograd.Function):
    """Runs out of memory in backward."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_running_out_of_memory_in_backward_says_what_fills_the_device():
    x = torch.ones(8, requires_grad=True)
    with dtr.limit("1TB"):
        loss = _Full.apply(x).sum()
        with pytest.raises(
            torch.OutOfMemoryError, match=r"2.00 GiB. windtunnel.dtr: .* in use, .* lower dtr.eviction"
        ):
            loss.backward()
    assert not dtr.is_enabled()


def test_a_limit_without_a_threshold_keeps_the_one_that_is_set():
    dtr.eviction_threshold = "3GB"
    with dtr.limit():
        assert dtr.eviction_threshold == "3GB"
    with dtr.limit("1GB"):
        assert dtr.eviction_threshold == "1GB"
    assert dtr.eviction_threshold == "3GB"


def test_in_a_dry_run_the_two_lines_do_nothing(monkeypatch):
    monkeypatch.setenv("WINDTUNNEL_DRY_RUN", "1")
    dtr.eviction_threshold = "5GB"
    with pytest.warns(UserWarning, match="does nothing in a dry run; `windtunnel remat` predicts"):
        dtr.enable()
    assert not dtr.is_enabled()
    assert _get_current_dispatch_mode_stack() == []
