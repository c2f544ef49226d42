"""The words of a kernel; its body is never executed."""

constexpr = "constexpr"


def load(pointer, mask=None, other=None): ...


def store(pointer, value, mask=None): ...


def atomic_add(pointer, value, mask=None): ...


def make_tensor_descriptor(base, shape, strides, block_shape): ...


def program_id(axis): ...


def arange(start, end): ...
