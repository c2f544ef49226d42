from windtunnel.capture.mindspore.tracker.model_names import ModelNames
from windtunnel.capture.mindspore.tracker.scope_names import place_of
from windtunnel.events.model import Phase, Role


def test_a_forward_operator_stands_in_its_cell():
    place = place_of("Default/network-WithLossCell/_backbone-Net/layers-CellList/0-Dense/MatMul-op0")
    assert (place.operator, place.module, place.phase) == ("MatMul", "layers.0", Phase.FORWARD)


def test_a_backward_operator_says_what_it_undoes():
    place = place_of(
        "Gradients/Default/network-WithLossCell/_backbone-Net/fc1-Dense/Grad_BiasAdd/BiasAddGrad-op3"
    )
    assert (place.operator, place.module, place.phase) == ("BiasAddGrad", "fc1", Phase.BACKWARD)
    assert place.undoes == "BiasAdd"


def test_an_optimizer_has_its_own_phase():
    assert place_of("Default/optimizer-Adam/AssignAdd-op0").phase == Phase.OPTIMIZER


def test_a_single_operator_of_dynamic_code_says_nothing_of_its_phase():
    place = place_of("Default/Cast-op0")
    assert (place.operator, place.module, place.phase) == ("Cast", "", None)
    assert place_of("SwigluGrad").operator == "SwigluGrad"


def test_a_recomputed_operator_is_known_as_such():
    place = place_of("recompute_Default/network-Net/blocks-CellList/1-Block/GeLU-op1")
    assert (place.module, place.is_again) == ("blocks.1", True)


def test_names_of_training_become_names_of_the_model():
    names = ModelNames(
        {"optimizer.layers.0.w": "layers.0.w"},
        {"adam_m.w": "optimizer.layers.0.w", "beta1_power": ""},
        ("net",),
    )
    assert names.role_and_name("optimizer.layers.0.w") == (Role.WEIGHT, "layers.0.w")
    assert names.role_and_name("adam_m.w") == (Role.OPTIMIZER, "layers.0.w")
    assert names.role_and_name("beta1_power") == (Role.OPTIMIZER, "beta1_power")
    assert names.in_model("net.layers.0") == "layers.0"
    assert (names.in_model("net"), names.in_model("network.a")) == ("", "network.a")
