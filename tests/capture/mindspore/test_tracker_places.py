from windtunnel.capture.mindspore.tracker.model_names import ModelNames
from windtunnel.capture.mindspore.tracker.module_and_phase import Places, Where
from windtunnel.events.model import Phase, Role

WEIGHT, OTHER_WEIGHT, STATE, CONSTANT, BATCH = range(5)


def places() -> Places:
    found = Places(ModelNames(prefixes=("net",)))
    found.learn(WEIGHT, Role.WEIGHT, "layers.0.w")
    found.learn(OTHER_WEIGHT, Role.WEIGHT, "layers.1.w")
    found.learn(STATE, Role.OPTIMIZER, "layers.0.w")
    found.learn(CONSTANT, Role.TEMPORARY, "constant")
    return found


def test_before_the_first_cell_a_program_builds():
    assert Places(ModelNames()).of_dynamic("Zeros", (), (1,)) == Where(Phase.BUILD, None)


def test_an_operator_stands_in_the_innermost_open_cell():
    found = places()
    found.enter("")
    found.enter("layers.0")
    assert found.of_dynamic("MatMul", (BATCH, WEIGHT), (10,)) == Where(Phase.FORWARD, "layers.0")
    assert found.exit() == "layers.0"
    assert found.now() == Where(Phase.FORWARD, "")


def test_a_cell_called_inside_backward_is_a_recomputation_of_its_own_module():
    found = places()
    found.begin_backward()
    found.enter("layers.0")
    assert found.of_dynamic("GeLU", (BATCH,), (10,)) == Where(Phase.BACKWARD, "layers.0")
    found.exit()
    assert found.of_dynamic("GeLUGrad", (BATCH, 10), (11,)) == Where(Phase.BACKWARD, "layers.0")
    found.end_backward()
    assert found.now().phase == Phase.FORWARD


def test_the_optimizer_s_own_operators_have_its_phase():
    found = places()
    found.optimizer(True)
    assert found.of_dynamic("AdamW", (WEIGHT,), (WEIGHT,)).phase == Phase.OPTIMIZER
    found.optimizer(False)
    assert found.of_compiled("Default/Adam-op0", (STATE, WEIGHT), (WEIGHT,)).phase == Phase.OPTIMIZER


def test_a_compiled_operator_without_a_scope_belongs_to_the_weight_it_reads_and_its_neighbours_follow():
    found = places()
    assert found.of_compiled("Default/MatMul-op0", (BATCH, WEIGHT), (10,)) == Where(Phase.FORWARD, "layers.0")
    assert found.of_compiled("Default/ReLU-op0", (10,), (11,)) == Where(Phase.FORWARD, "layers.0")


def test_what_reads_a_gradient_is_backward_too_whatever_its_name():
    found = places()
    found.of_compiled("Gradients/Default/a-A/Grad_Mul/Mul-op0", (), (20,))
    assert found.of_compiled("Default/AllReduce-op0", (20,), (21,)).phase == Phase.BACKWARD


def test_scopes_of_backward_give_way_to_storages_but_not_to_guesses():
    found = places()
    found.of_compiled("Default/net-Net/layers-CellList/0-Dense/MatMul-op0", (BATCH, WEIGHT, CONSTANT), (10,))
    found.of_compiled(
        "Default/net-Net/layers-CellList/1-Dense/MatMul-op0", (10, OTHER_WEIGHT, CONSTANT), (11,)
    )
    scope = "Gradients/Default/net-Net/layers-CellList/0-Dense/Grad_MatMul/"
    # of layer 1 by the weight it reads, by its input, by its neighbour
    assert found.of_compiled(scope + "MatMul-op0", (90, OTHER_WEIGHT), (91,)).module == "layers.1"
    assert found.of_compiled(scope + "MatMul-op1", (90, 10, CONSTANT), (92,)).module == "layers.1"
    assert found.of_compiled(scope + "Reshape-op0", (91,), (91,)).module == "layers.1"
    assert found.of_compiled(
        scope.replace("0-Dense", "0-Dense/norm-Norm") + "Cast-op0", (91,), (91,)
    ).module == ("layers.1.norm")
    # the loss is no layer: its scope is believed
    loss = "Gradients/Default/net-Net/loss-Loss/Grad_CrossEntropy/OneHot-op0"
    assert found.of_compiled(loss, (93,), (94,)).module == "loss"


def test_a_storage_that_was_freed_tells_nothing():
    found = places()
    found.enter("layers.0")
    found.of_dynamic("ReLU", (BATCH,), (10,))
    found.exit()
    found.release(10)
    found.release(BATCH)
    found.begin_backward()
    assert found.of_dynamic("Mul", (10,), (11,)) == Where(Phase.BACKWARD, None)


def test_a_function_that_two_layers_share_belongs_to_the_layer_whose_data_it_reads():
    """ops.gelu is compiled once, with the scope of the layer that called it first."""
    found = places()
    scope, gelu = "Default/net-Net/layers-CellList/", "Default/net-Net/layers-CellList/0-Dense/Erf-op0"
    found.of_compiled(scope + "0-Dense/MatMul-op0", (BATCH, WEIGHT), (10,))
    assert found.of_compiled(gelu, (10,), (11,)).module == "layers.0"
    found.of_compiled(scope + "1-Dense/MatMul-op0", (11, OTHER_WEIGHT), (12,))
    assert found.of_compiled(gelu, (12,), (13,)).module == "layers.1"
    # what a later layer reads of an earlier one does not make it the earlier one's
    assert found.of_compiled(scope + "2-Dense/Cast-op0", (13,), (14,)).module == "layers.2"
    assert found.of_compiled("Default/net-Net/head-Dense/Cast-op0", (14,), (15,)).module == "head"
