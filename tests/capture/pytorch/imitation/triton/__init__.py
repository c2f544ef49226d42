"""As much of Triton as a launch touches: the names and the order of calls of the package, without its compiler."""

from __future__ import annotations

import inspect
import textwrap
from collections import namedtuple
from types import SimpleNamespace

from triton import language  # noqa: F401  (scripts import it through the package)

__version__ = "3.8.0"


class _Param:
    def __init__(self, parameter):
        self.name = parameter.name
        self.is_constexpr = "constexpr" in str(parameter.annotation)


class JITFunction:
    def __init__(self, fn):
        self.fn, self.__name__, self.__module__ = fn, fn.__name__, fn.__module__
        self.signature = inspect.signature(fn)
        self.params = [_Param(each) for each in self.signature.parameters.values()]
        self.arg_names = [each.name for each in self.params]
        text = textwrap.dedent(inspect.getsource(fn))
        self.src = text[text.index("def ") :]
        self.pre_run_hooks = []

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args, grid, warmup, **kwargs):
        raise RuntimeError("0 active drivers ([]). There should only be one.")


class Config:
    def __init__(self, kwargs, num_warps=4):
        self.kwargs, self.num_warps = kwargs, num_warps


class Autotuner:
    def __init__(self, fn, configs, key):
        self.fn, self.configs, self.keys, self.cache = fn, configs, key, {}

    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)

    def run(self, *args, **kwargs):
        named = dict(zip(self.fn.arg_names, args, strict=False)) | kwargs
        key = tuple(named[name] for name in self.keys)
        if key not in self.cache:
            times = {c: self._bench(args, c, kwargs) for c in self.configs}
            self.cache[key] = min(times, key=times.get)
        self.best_config = self.cache[key]
        return self.fn.run(*args, **kwargs, **self.best_config.kwargs, num_warps=self.best_config.num_warps)

    def _bench(self, args, config, kwargs):
        call = lambda: self.fn.run(*args, **kwargs, **config.kwargs, num_warps=config.num_warps)
        return runtime.driver.active.get_benchmarker()(call, quantiles=(0.5, 0.2, 0.8))


class _Drivers:
    _default = _active = None

    @property
    def active(self):
        if self._active is None:
            raise RuntimeError("0 active drivers ([]). There should only be one.")
        return self._active

    def set_active(self, driver):
        self._active = driver


def jit(fn):
    return JITFunction(fn)


def autotune(configs, key):
    return lambda fn: Autotuner(fn, configs, key)


def cdiv(x, y):
    return -(-x // y)


runtime = SimpleNamespace(jit=SimpleNamespace(JITFunction=JITFunction), driver=_Drivers())
backends = SimpleNamespace(
    compiler=SimpleNamespace(GPUTarget=namedtuple("GPUTarget", "backend arch warp_size")), backends={}
)
testing = SimpleNamespace(do_bench=None)
