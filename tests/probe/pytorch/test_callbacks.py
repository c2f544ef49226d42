"""ProbeCallback: a real Trainer of transformers, and Lightning's loop played by hand (it is not installed)."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.probe.probing import make_debugger, read_dump
from windtunnel.pytorch import ProbeCallback


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, x, labels=None):
        out = self.fc(x)
        return {"loss": nn.functional.cross_entropy(out, labels), "logits": out}


def _trainer(folder, callbacks):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    rows = [{"x": torch.randn(3), "labels": torch.tensor(number % 2)} for number in range(12)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=3,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    return transformers.Trainer(model=Tiny(), args=arguments, train_dataset=rows, callbacks=callbacks)


def test_a_step_of_the_trainer_is_a_step_of_the_debugger(tmp_path):
    plain = _trainer(tmp_path / "a", [])
    plain.train()
    debugger = make_debugger(tmp_path, level="mix", task="statistics")
    probed = _trainer(tmp_path / "b", [ProbeCallback(debugger)])
    probed.train()
    assert all(
        torch.equal(a, b) for a, b in zip(plain.model.parameters(), probed.model.parameters(), strict=True)
    )
    assert sorted(path.name for path in (tmp_path / "dump").iterdir()) == ["step0", "step1", "step2"]
    dump = read_dump(tmp_path, step=2)
    assert not (dump.folder / "dump_error_info.log").exists()
    # two micro-batches, one optimizer step
    assert dump.names("Module.fc.Linear.forward") == [
        "Module.fc.Linear.forward.0",
        "Module.fc.Linear.forward.1",
    ]
    assert dump.names("Module.fc.Linear.backward") == [
        "Module.fc.Linear.backward.0",
        "Module.fc.Linear.backward.1",
    ]
    assert "optimizer" in dump.json("construct.json").values()


class FakeTrainer:
    """Calls callbacks as Lightning's Trainer does: by name, with itself and the module first."""

    def __init__(self, callbacks: list, accumulate: int) -> None:
        self.callbacks = callbacks
        self.accumulate = accumulate
        self.global_step = 0

    def _call(self, hook: str, module, *args) -> None:
        for callback in self.callbacks:
            function = getattr(callback, hook)
            if callable(function):
                function(self, module, *args)

    def fit(self, module: nn.Module, n_batches: int) -> None:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        self._call("setup", module, "fit")
        for hook in ("on_fit_start", "on_sanity_check_start", "on_train_start", "on_train_epoch_start"):
            self._call(hook, module)
        for number in range(n_batches):
            batch = torch.ones(2, 3) * number
            self._call("on_train_batch_start", module, batch, number)
            loss = module(batch, torch.tensor([0, 1]))["loss"]
            self._call("on_before_backward", module, loss)
            loss.backward()
            self._call("on_after_backward", module)
            if (number + 1) % self.accumulate == 0:
                self._call("on_before_optimizer_step", module, optimizer)
                optimizer.step()
                optimizer.zero_grad()
                self.global_step += 1
            self._call("on_train_batch_end", module, {"loss": loss}, batch, number)
        for callback in self.callbacks:
            assert callback.state_dict() == {}
            assert callback.state_key
        self._call("on_save_checkpoint", module, {})
        for hook in ("on_train_epoch_end", "on_train_end", "on_fit_end"):
            self._call(hook, module)
        self._call("teardown", module, "fit")


@pytest.mark.parametrize(("accumulate", "n_steps"), [(1, 4), (2, 2)])
def test_lightning_has_a_step_per_optimizer_step(tmp_path, accumulate, n_steps):
    debugger = make_debugger(tmp_path, level="L0", task="statistics")
    FakeTrainer([ProbeCallback(debugger)], accumulate).fit(Tiny(), 4)
    steps = sorted((tmp_path / "dump").iterdir())
    assert len(steps) == n_steps
    calls = read_dump(tmp_path, step=n_steps - 1).names("Module.fc.Linear.forward")
    assert calls == [f"Module.fc.Linear.forward.{number}" for number in range(accumulate)]


def test_a_training_that_fails_leaves_nothing_on(tmp_path):
    debugger = make_debugger(tmp_path, level="L1", task="statistics")
    callback = ProbeCallback(debugger)
    callback.on_train_batch_start(FakeTrainer([], 1), Tiny(), None, 0)
    assert torch._C._len_torch_function_stack() == 1
    callback.on_exception(FakeTrainer([], 1), Tiny(), RuntimeError("mine"))
    assert torch._C._len_torch_function_stack() == 0
    with pytest.raises(AttributeError, match="ProbeCallback has no 'fit'"):
        _ = callback.fit
