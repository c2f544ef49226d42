"""Optional C++ extensions, which pyproject.toml cannot declare: if they fail to build, the package works without them."""

from setuptools import Extension, setup

FLAGS = ["-O3", "-g0", "-std=c++17", "-fno-exceptions", "-fno-rtti", "-Wno-psabi"]
LINK_FLAGS = ["-s"]  # symbols for a debugger would more than double the file

setup(
    ext_modules=[
        Extension(
            "windtunnel.probe.measure.fused",
            sources=["src/windtunnel/probe/measure/fused.cpp"],
            depends=["src/windtunnel/probe/measure/fused_pass.h", "src/windtunnel/probe/measure/fused_gather.h"],
            extra_compile_args=FLAGS,
            extra_link_args=LINK_FLAGS,
            optional=True,
        ),
        Extension(
            "windtunnel.probe.pytorch.eager.method_swap",
            sources=["src/windtunnel/probe/pytorch/eager/method_swap.cpp"],
            extra_compile_args=FLAGS,
            extra_link_args=LINK_FLAGS,
            optional=True,
        ),
    ]
)
