"""The one thing pyproject.toml cannot say: an extension that may fail to build; the package works without it."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "windtunnel.probe.fused",
            sources=["src/windtunnel/probe/fused.cpp"],
            depends=["src/windtunnel/probe/fused_pass.h", "src/windtunnel/probe/fused_gather.h"],
            extra_compile_args=["-O3", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-Wno-psabi"],
            optional=True,
        )
    ]
)
