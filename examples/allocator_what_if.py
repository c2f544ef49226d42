"""Ask the allocator models directly: what does fragmentation cost here? python examples/allocator_what_if.py"""

from windtunnel.memory import Allocator

MIB = 1 << 20

for name in ("cuda", "cuda-expandable", "npu", "mindspore"):
    allocator = Allocator.named(name, device_bytes=24 << 30)
    # grow a buffer step by step, as a key-value cache does: the old one is freed after the new one is allocated
    for step in range(1, 40):
        allocator.alloc(step, step * 37 * MIB)
        if step > 1:
            allocator.free(step - 1)
    live, reserved = allocator.peak_allocated_bytes / MIB, allocator.peak_reserved_bytes / MIB
    print(
        f"{name:16s} live {live:7.0f} MiB, reserved {reserved:7.0f} MiB ({reserved / live - 1:.0%} fragments)"
    )
