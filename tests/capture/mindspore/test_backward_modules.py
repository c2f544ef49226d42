from windtunnel.capture.mindspore.tracker.backward_modules import BackwardModules, Undone, stem_of, undone_by


def test_names_of_gradients_speak_of_their_forward_operator():
    assert [undone_by(name) for name in ("ReluGrad", "LayerNormGradV3", "SoftmaxBackward", "GatherDGradV2")] == [
        "relu", "layernorm", "softmax", "gatherd",
    ]  # fmt: skip
    assert undone_by("MatMulExt") == undone_by("Grad") == ""
    assert stem_of("MatMulExt") == stem_of("MatMul") == "matmul"


def two_layers() -> BackwardModules:
    """x0 -> MatMul w1 -> t1 -> BiasAdd -> a1 -> ReLU -> x1 -> the same with w2"""
    modules = BackwardModules()
    for layer, (x, weight, matmul, biased, out) in enumerate(((0, 1, 2, 3, 4), (4, 5, 6, 7, 8))):
        modules.forward(f"layers.{layer}", "MatMul", (x, weight, matmul))
        modules.forward(f"layers.{layer}", "BiasAdd", (matmul, biased))
        modules.forward("act", "ReLU", (biased, out))
        modules.release(matmul)
        modules.release(biased)
    return modules


def test_a_gradient_belongs_to_the_operator_in_its_name_not_to_the_reader_of_the_same_data():
    modules = two_layers()
    assert modules.backward("relu", (90, 8, 91)) == Undone("act", True)
    assert modules.backward("", (91, 5, 92)) == Undone("layers.1", True)  # dx: reads the weight
    assert modules.backward("", (91, 4, 93)) == Undone(
        "layers.1", True
    )  # dw: reads its input, which is ReLU's result
    assert modules.backward("relu", (92, 4, 94)) == Undone("act", True)


def test_one_that_reads_gradients_only_belongs_to_the_nearest_of_its_name():
    modules = two_layers()
    modules.backward("relu", (90, 8, 91))
    assert modules.backward("biasadd", (91, 95)).module == "layers.1"
    modules.backward("", (91, 5, 92))
    modules.backward("relu", (92, 4, 94))
    modules.backward("", (94, 1, 96))  # MatMul of layer 0 is undone before its BiasAdd
    assert modules.backward("biasadd", (94, 97)) == Undone("layers.0", True)


def test_a_reshape_of_a_gradient_belongs_where_its_neighbour_did():
    modules = two_layers()
    assert modules.backward("", (90,)) == Undone(None, False)
    modules.backward("", (91, 5, 92))
    assert modules.backward("", (92,)) == Undone("layers.1", False)


def test_a_step_forgets_the_one_before():
    modules = two_layers()
    modules.new_step()
    assert modules.backward("relu", (90, 8, 91)) == Undone(None, False)


def test_a_storage_that_everything_reads_does_not_slow_a_program_that_never_takes_a_step():
    modules = BackwardModules()
    for number in range(10_000):
        modules.forward(f"layers.{number}", "MatMul", (1, number + 2))
    assert modules.backward("", (1,)).module == "layers.9999"
    assert len(modules._users[1]) <= 256
