"""The one thing pyproject.toml cannot say: extensions that may fail to build; the package works without them."""

from setuptools import Extension, setup

FLAGS = ["-O3", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-Wno-psabi"]

setup(
    ext_modules=[
        Extension(
            "windtunnel.probe.fused",
            sources=["src/windtunnel/probe/fused.cpp"],
            depends=["src/windtunnel/probe/fused_pass.h", "src/windtunnel/probe/fused_gather.h"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
        Extension(
            "windtunnel.probe.method_swap",
            sources=["src/windtunnel/probe/method_swap.cpp"],
            extra_compile_args=FLAGS,
            optional=True,
        ),
    ]
)
