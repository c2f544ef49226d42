from tests.capture.mindspore.tracker_output import spec
from windtunnel.capture.mindspore.rank_log import ErrorLines, PrintedFacts
from windtunnel.capture.mindspore.tracker.words import collective_of, is_kernel, requested_bytes

PARALLEL = (
    "[ERROR] PARALLEL(24219,7fd2ba46eb80,python3):2026-11-16-12:18:25.876.860 [mindspore/ccsrc/strategy.cc:207] Check]"
    " The strategy is ((3, 1)), 3 does not divide 8."
)
OTHER = "[ERROR] PYNATIVE(1,2,python3):2026-11-16-12:18:25.876.860 [a/b.cc:7] Run] shapes differ: 3 and 2"


def explained(error: str, *lines: str) -> str:
    listener = ErrorLines()
    for line in lines:
        listener.listen(line)
    return listener.explain(error)


def test_the_reason_of_parallel_training_stands_before_the_exception():
    assert explained("the script raised RuntimeError: failed", OTHER, PARALLEL) == (
        "the parallel strategy does not fit the number of devices: The strategy is ((3, 1)), 3 does not divide 8"
    )


def test_an_exception_that_says_little_gets_the_log_s_words_and_one_that_says_enough_does_not():
    assert explained("RuntimeError: failed", OTHER) == "RuntimeError: failed: shapes differ: 3 and 2"
    long = (
        "the script raised ValueError: "
        + "For 'MatMul', the inputs must agree in their inner sizes, but got 3 and 2"
    )
    assert explained(long, OTHER) == long


def test_what_is_for_developers_is_left_out():
    text = "RuntimeError: no memory.\n\n--------------------\n- C++ Call Stack: (For framework developers)\n----\na.cc:1"
    assert explained(text) == "RuntimeError: no memory"


def test_the_five_printed_facts():
    facts = PrintedFacts()
    lines = [
        "Device MOC memory size: 65536M", "MindSpore Used memory size: 61430M",
        "MindSpore memory base address: 0x7fd3aa69d477", "Used peak memory usage (without fragments): 55394M",
        "Actual peak memory usage (with fragments): 57329M",
    ]  # fmt: skip
    assert all(facts.listen(line) for line in lines)
    assert not facts.listen("epoch 1: Used peak memory usage (without fragments): 3M")
    assert facts.as_document() == {
        "device_mib": 65536, "usable_mib": 61430, "used_peak_mib": 55394, "actual_peak_mib": 57329,
    }  # fmt: skip


def test_communication_has_torch_s_names_and_a_table_lookup_is_none():
    assert [collective_of(name) for name in ("AllReduce", "DistCommAllGatherIntoTensor", "InnerCommIrecv")] == [
        "c10d.all_reduce", "c10d.all_gather", "c10d.recv",
    ]  # fmt: skip
    assert collective_of("Gather") is collective_of("MatMul") is None
    assert collective_of("DistCommGather") == "c10d.gather"


def test_copies_and_bookkeeping_are_no_kernels():
    assert is_kernel("MatMul", "PyNative")
    assert not is_kernel("data-3", "SyncTensorData")
    assert not is_kernel("begin", "windtunnel")
    assert not is_kernel("kernel_graph_0_HostDSActor", "kernel_graph_0_HostDSActor")


def test_what_was_asked_for_is_found_again_from_what_the_pool_took():
    for n_bytes in (1, 2, 480, 481, 512, 1000, 65536, 66049):
        size = (n_bytes + 512 + 31) // 512 * 512
        assert requested_bytes(size, spec(n_bytes, dtype="uint8")) == n_bytes
        again = requested_bytes(size, None)
        assert (again + 512 + 31) // 512 * 512 == size
    assert requested_bytes(66048, spec(3)) == 65536  # a tensor that does not fill the block says nothing
