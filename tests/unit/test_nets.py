"""Two interpreters of one description: they must agree, and the description must cover the vector."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples import random_statistics, random_vector

from manyhands.config.settings import NetConfig
from manyhands.core.actions import ActionSpec
from manyhands.core.errors import RunError, UsageError
from manyhands.core.networks import MEAN, SCALE, Conv, Dense, Head, NetSpec
from manyhands.core.spaces import ObsSpec, Spaces
from manyhands.nets.adam import Adam
from manyhands.nets.build import actor, actor_critic
from manyhands.nets.numpy_net import NumpyNet
from manyhands.nets.torch_net import TorchActor, TorchNet

dense_layers = st.lists(
    st.builds(Dense, st.integers(1, 9), st.sampled_from(["tanh", "relu", "none"])), max_size=3
).map(tuple)


@st.composite
def dense_specs(draw: st.DrawFn) -> NetSpec:
    heads = [
        Head("policy", draw(st.integers(1, 6)), draw(dense_layers), gain=0.01),
        Head("value", 1, draw(dense_layers)),
    ]
    if draw(st.booleans()):
        heads.append(Head("log_std", draw(st.integers(1, 4)), gain=-0.7, free=True))
    shape = draw(st.sampled_from([(1,), (4,), (3, 5), (2, 1, 3)]))
    return NetSpec(shape, tuple(heads), draw(dense_layers), normalise=draw(st.booleans()))


@given(dense_specs(), st.integers(1, 20), st.integers(0, 2**32))
def test_numpy_and_torch_agree(spec: NetSpec, batch: int, seed: int) -> None:
    vector, beside = random_vector(spec, seed), random_statistics(spec, seed)
    obs = np.random.default_rng(seed).normal(0, 3, (batch, *spec.input_shape)).astype(np.float32)
    ours = NumpyNet(spec)
    ours.load(vector, beside)
    names = (head.name for head in spec.heads)
    theirs = TorchNet(spec, vector, beside).forward(torch.from_numpy(obs), *names)
    for head, output in zip(spec.heads, theirs, strict=True):
        mine = ours.forward(obs, head.name)
        assert mine.shape == ((head.size,) if head.free else (batch, head.size))
        np.testing.assert_allclose(mine, output.detach().numpy(), rtol=1e-5, atol=1e-5)


@given(dense_specs())
def test_a_network_of_the_usual_size_computes_what_its_description_says(spec: NetSpec) -> None:
    """Against the formula itself, so that both interpreters cannot be wrong in the same way."""
    vector, beside = random_vector(spec, 3), random_statistics(spec, 3)
    part = {p.name: vector[p.offset : p.end].reshape(p.shape).astype(float) for p in spec.parameters}
    obs = np.random.default_rng(4).normal(0, 20, (3, *spec.input_shape)).astype(np.float32)
    net = NumpyNet(spec)
    net.load(vector, beside)
    activations = {"tanh": np.tanh, "relu": lambda x: np.maximum(x, 0), "none": lambda x: x}
    hidden = obs.reshape(3, -1).astype(float)
    if spec.normalise:
        hidden = np.clip((hidden - beside[MEAN]) * beside[SCALE], -10, 10)
    for i, layer in enumerate(spec.trunk):
        hidden = activations[layer.activation](hidden @ part[f"trunk{i}.weight"] + part[f"trunk{i}.bias"])
    for head in spec.heads:
        if head.free:
            np.testing.assert_array_equal(net.forward(obs, head.name), part[head.name].astype(np.float32))
            continue
        out = hidden
        for i, layer in enumerate(head.hidden):
            out = activations[layer.activation](
                out @ part[f"{head.name}{i}.weight"] + part[f"{head.name}{i}.bias"]
            )
        out = out @ part[f"{head.name}.weight"] + part[f"{head.name}.bias"]
        np.testing.assert_allclose(net.forward(obs, head.name), out, rtol=1e-4, atol=1e-4)


def image_spec(image: str, size: int = 12) -> NetSpec:
    shape = (size, size + 2, 3) if image == "hwc" else (3, size, size + 2)
    trunk = (Conv(4, 3, 2), Conv(5, 2, 1, "tanh"), Dense(7, "relu"))
    return NetSpec(shape, (Head("policy", 4), Head("value", 1, (Dense(3),))), trunk, image=image)


ALL_KINDS = [
    NetSpec((4,), (Head("policy", 2, (Dense(8), Dense(8))), Head("value", 1, (Dense(8),)))),
    NetSpec(
        (3, 2),
        (Head("policy", 2), Head("log_std", 2, free=True, gain=0.5)),
        (Dense(5, "relu"),),
        normalise=True,
    ),
    image_spec("hwc"),
    image_spec("chw"),
]


@pytest.mark.parametrize("spec", ALL_KINDS)
def test_json_leads_back_to_the_same_description(spec: NetSpec) -> None:
    back = NetSpec.from_json(spec.to_json())
    assert back == spec
    assert back.schema == spec.schema
    assert back.parameters == spec.parameters


@given(dense_specs())
def test_json_leads_back_to_the_same_description_for_any_dense_network(spec: NetSpec) -> None:
    assert NetSpec.from_json(spec.to_json()) == spec


def test_the_schema_never_changes_for_a_description() -> None:
    """A run of last year must still find its network: this hash was written down once."""
    spec = NetSpec(
        (4,), (Head("policy", 2, (Dense(64), Dense(64)), gain=0.01), Head("value", 1, (Dense(64),)))
    )
    assert spec.schema == "8714d9dc4f775402"


def test_schemas_differ_wherever_networks_do() -> None:
    base = {"input_shape": (4,), "heads": (Head("policy", 2),), "trunk": (Dense(8),)}
    changes = [
        {},
        {"input_shape": (5,)},
        {"heads": (Head("policy", 3),)},
        {"heads": (Head("other", 2),)},
        {"heads": (Head("policy", 2, (Dense(8),)),)},
        {"heads": (Head("policy", 2), Head("value", 1))},
        {"trunk": (Dense(9),)},
        {"trunk": (Dense(8, "relu"),)},
        {"trunk": ()},
        {"normalise": True},
    ]
    assert len({NetSpec(**{**base, **change}).schema for change in changes}) == len(changes)


@given(dense_specs())
def test_parameters_cover_the_vector_exactly_once(spec: NetSpec) -> None:
    check_cover(spec)


@pytest.mark.parametrize("spec", ALL_KINDS)
def test_parameters_of_every_kind_cover_the_vector_exactly_once(spec: NetSpec) -> None:
    check_cover(spec)


def check_cover(spec: NetSpec) -> None:
    used = np.zeros(spec.size, int)
    for p in spec.parameters:
        used[p.offset : p.end] += 1
    assert (used == 1).all()
    assert len({p.name for p in spec.parameters}) == len(spec.parameters)
    assert spec.size == sum(np.prod(p.shape) for p in spec.parameters)
    assert spec.size == replace(spec, normalise=False).size  # statistics are beside the vector
    assert {name: array.shape for name, array in spec.initial_statistics().items()} == {
        name: (size,) for name, size in spec.statistics
    }


def flat_last(hidden: torch.Tensor) -> torch.Tensor:
    """Images with their channels last, as the dense layers expect them."""
    return (hidden.permute(0, 2, 3, 1) if hidden.ndim == 4 else hidden).flatten(1)


def plain_forward(
    spec: NetSpec, flat: torch.Tensor, beside: Mapping[str, np.ndarray], obs: torch.Tensor
) -> list[torch.Tensor]:
    """Every head by torch's own layers on one tensor, which is then differentiated as a whole."""
    part = {p.name: flat[p.offset : p.end].view(p.shape) for p in spec.parameters}
    activations = {"tanh": torch.tanh, "relu": torch.relu, "none": lambda x: x}
    hidden = obs.permute(0, 3, 1, 2) if spec.image == "hwc" else obs if spec.image else obs.flatten(1)
    if spec.normalise:
        mean, scale = (torch.from_numpy(beside[name]) for name in (MEAN, SCALE))
        hidden = ((obs.flatten(1) - mean) * scale).clamp(-10, 10)
    for i, layer in enumerate(spec.trunk):
        weight, bias = part[f"trunk{i}.weight"], part[f"trunk{i}.bias"]
        if isinstance(layer, Conv):
            kernel = weight.permute(0, 3, 1, 2)
            hidden = torch.nn.functional.conv2d(hidden, kernel, bias, stride=layer.stride)
        else:
            hidden = flat_last(hidden) @ weight + bias
        hidden = activations[layer.activation](hidden)
    outputs = []
    for head in spec.heads:
        if head.free:
            outputs.append(part[head.name])
            continue
        out = flat_last(hidden)
        for i, layer in enumerate(head.hidden):
            out = activations[layer.activation](
                out @ part[f"{head.name}{i}.weight"] + part[f"{head.name}{i}.bias"]
            )
        outputs.append(out @ part[f"{head.name}.weight"] + part[f"{head.name}.bias"])
    return outputs


def loss_of(outputs: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([(output.square() + output.sin()).mean() for output in outputs]).sum()


def descend(net: TorchNet, obs: torch.Tensor) -> list[torch.Tensor]:
    """All heads' outputs, after the gradient of `loss_of` went back through the network."""
    outputs = net.forward(obs, *(head.name for head in net.spec.heads))
    leaves = [output.clone().requires_grad_() for output in outputs]
    loss_of(leaves).backward()
    net.backward([leaf.grad for leaf in leaves])
    return outputs


def check_gradient(spec: NetSpec, seed: int) -> None:
    vector, beside = random_vector(spec, seed), random_statistics(spec, seed)
    net = TorchNet(spec, vector, beside)
    pointer = net.gradient.data_ptr()
    rng = np.random.default_rng(seed)
    obs = torch.from_numpy(rng.normal(0, 1, (6, *spec.input_shape)).astype(np.float32))
    outputs = descend(net, obs)
    flat = torch.from_numpy(vector.copy()).requires_grad_()
    expected = plain_forward(spec, flat, beside, obs)
    loss_of(expected).backward()
    for mine, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert net.gradient.data_ptr() == pointer
    assert flat.grad is not None
    np.testing.assert_allclose(net.gradient.numpy(), flat.grad.numpy(), rtol=1e-3, atol=1e-5)
    for p in spec.parameters:
        assert net.gradient_of(p.name).data_ptr() == net.gradient[p.offset :].data_ptr()


@given(dense_specs(), st.integers(0, 2**32))
def test_gradients_of_dense_networks_land_in_the_one_flat_gradient(spec: NetSpec, seed: int) -> None:
    check_gradient(spec, seed)


@pytest.mark.parametrize("spec", ALL_KINDS)
def test_gradients_land_in_the_one_flat_gradient(spec: NetSpec) -> None:
    for seed in range(5):
        check_gradient(spec, seed)


@pytest.mark.parametrize("spec", ALL_KINDS)
def test_every_trained_parameter_gets_a_gradient(spec: NetSpec) -> None:
    net = TorchNet(spec, random_vector(spec, 5), random_statistics(spec, 5))
    obs = torch.from_numpy(np.random.default_rng(1).normal(0, 1, (6, *spec.input_shape)).astype(np.float32))
    descend(net, obs)
    for p in spec.parameters:
        assert net.gradient_of(p.name).abs().sum() > 0, p.name


def test_gradients_add_up_until_they_are_zeroed() -> None:
    spec = ALL_KINDS[0]
    net = TorchNet(spec, random_vector(spec))
    obs = torch.ones(2, 4)
    net.backward([torch.ones_like(net.forward(obs, "policy")[0])])
    once = net.gradient.clone()
    net.backward([torch.ones_like(net.forward(obs, "policy")[0])])
    torch.testing.assert_close(net.gradient, 2 * once)
    net.gradient.zero_()
    assert all(view.grad.abs().sum() == 0 for view in net.views.values())


def test_the_optimizer_that_moves_the_flat_vector_moves_every_view() -> None:
    spec = ALL_KINDS[1]
    beside = random_statistics(spec)
    net = TorchNet(spec, random_vector(spec), beside)
    before = net.vector()
    net.gradient.fill_(1.0)
    Adam(net.flat, net.gradient).step(0.1)
    np.testing.assert_allclose(net.vector(), before - 0.1, rtol=1e-3, atol=1e-5)
    check_statistics(net, beside)
    for p in spec.parameters:
        np.testing.assert_array_equal(
            net.views[p.name].detach().numpy().reshape(-1), net.vector()[p.offset : p.end]
        )


def check_statistics(net: TorchNet, expected: Mapping[str, np.ndarray]) -> None:
    found = net.beside()
    assert found.keys() == expected.keys() == {MEAN, SCALE}
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_an_average_moves_all_that_is_learned_and_no_statistics() -> None:
    spec = ALL_KINDS[1]
    beside = random_statistics(spec)
    net = TorchNet(spec, random_vector(spec), beside)
    before, other = net.vector(), random_vector(spec, 1)
    net.average_into(other, 0.25)
    np.testing.assert_allclose(net.vector(), 0.75 * before + 0.25 * other, atol=1e-6)
    check_statistics(net, beside)


@pytest.mark.parametrize("broken", ["flat", "statistics"])
def test_numbers_that_are_not_finite_end_a_run_wherever_they_are(broken: str) -> None:
    spec = ALL_KINDS[1]
    net = TorchNet(spec, random_vector(spec), random_statistics(spec))
    net.check_finite(10)
    (net.flat if broken == "flat" else net.statistics[SCALE])[1] = np.nan
    with pytest.raises(RunError, match="no longer finite after 10 steps"):
        net.check_finite(10)


@pytest.mark.parametrize("kind", [NumpyNet, TorchActor])
def test_a_network_does_not_act_without_its_statistics(kind: type[NumpyNet | TorchActor]) -> None:
    with pytest.raises(KeyError, match=MEAN):
        kind(ALL_KINDS[1]).load(random_vector(ALL_KINDS[1]))


def test_adam_on_the_flat_vector_equals_torchs_adam() -> None:
    rng = np.random.default_rng(6)
    vector, gradient = (torch.from_numpy(rng.normal(size=50).astype(np.float32)) for _ in range(2))
    copy = vector.clone().requires_grad_()
    theirs = torch.optim.Adam([copy], lr=1e-2, eps=1e-5)
    ours = Adam(vector, gradient)
    for step in range(30):
        gradient.copy_(torch.from_numpy(rng.normal(0.1, 10.0 ** (step % 5 - 3), 50).astype(np.float32)))
        if step == 20:  # another one that goes on from here
            state = ours.state()
            ours = Adam(vector, gradient)
            ours.load_state(state)
        ours.step(1e-2)
        copy.grad = gradient.clone()
        theirs.step()
        torch.testing.assert_close(vector, copy.detach(), rtol=1e-4, atol=1e-6)


def test_vectors_are_copied_in_and_out() -> None:
    spec = ALL_KINDS[0]
    vector = random_vector(spec)
    torch_net, numpy_net = TorchNet(spec, vector), NumpyNet(spec)
    numpy_net.load(vector)
    kept = vector.copy()
    vector[:] = 0
    assert np.array_equal(torch_net.vector(), kept)
    assert np.array_equal(numpy_net.vector, kept)
    torch_net.vector()[:] = 0
    assert np.array_equal(torch_net.vector(), kept)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_images_give_equal_results_whichever_axis_holds_the_channels(dtype: type) -> None:
    hwc, chw = image_spec("hwc"), image_spec("chw")
    assert [p.shape for p in hwc.parameters] == [p.shape for p in chw.parameters]
    vector = random_vector(hwc, 2)
    obs = np.random.default_rng(3).integers(0, 256, (5, *hwc.input_shape)).astype(dtype)
    transposed = np.ascontiguousarray(obs.transpose(0, 3, 1, 2))
    for name in ("policy", "value"):
        last = TorchNet(hwc, vector).forward(torch.from_numpy(obs), name)[0]
        first = TorchNet(chw, vector).forward(torch.from_numpy(transposed), name)[0]
        torch.testing.assert_close(last, first, rtol=1e-4, atol=1e-4)
        assert last.std() > 0


def test_bytes_are_read_as_fractions_of_255() -> None:
    spec = image_spec("hwc")
    net = TorchNet(spec, random_vector(spec))
    obs = np.random.default_rng(3).integers(0, 256, (2, *spec.input_shape)).astype(np.uint8)
    as_bytes = net.forward(torch.from_numpy(obs), "policy")[0]
    as_floats = net.forward(torch.from_numpy(obs.astype(np.float32) / 255), "policy")[0]
    torch.testing.assert_close(as_bytes, as_floats)


@pytest.mark.parametrize("spec", ALL_KINDS)
def test_the_torch_actor_equals_the_torch_net(spec: NetSpec) -> None:
    vector, beside = random_vector(spec, 7), random_statistics(spec, 7)
    acting, net = TorchActor(spec), TorchNet(spec, vector, beside)
    acting.load(vector, beside)
    obs = np.random.default_rng(1).normal(0, 1, (4, *spec.input_shape)).astype(np.float32)
    for head in spec.heads:
        expected = net.forward(torch.from_numpy(obs), head.name)[0].detach().numpy()
        np.testing.assert_array_equal(acting.forward(obs, head.name), expected)


@pytest.fixture
def every_warning() -> Iterator[None]:
    """torch warns once per process by default; here every test must see it."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.usefixtures("every_warning")
@pytest.mark.parametrize("spec", ALL_KINDS)
def test_read_only_vectors_as_they_come_off_the_wire_can_be_loaded(spec: NetSpec) -> None:
    vector, beside = random_vector(spec), random_statistics(spec)
    for array in (vector, *beside.values()):
        array.flags.writeable = False
    net = TorchNet(spec, np.zeros(spec.size, np.float32), spec.initial_statistics())
    net.load(vector, beside)
    assert np.array_equal(net.vector(), vector)
    assert all(np.array_equal(net.beside()[name], array) for name, array in beside.items())


def test_convolutions_act_with_torch_and_dense_networks_with_numpy() -> None:
    assert isinstance(actor(image_spec("hwc")), TorchActor)
    assert isinstance(actor(ALL_KINDS[0]), NumpyNet)
    with pytest.raises(ValueError, match="torch"):
        NumpyNet(image_spec("hwc"))


def test_an_image_too_small_for_its_convolutions_is_refused() -> None:
    with pytest.raises(UsageError, match="too small"):
        _ = NetSpec((4, 4, 1), (Head("policy", 2),), (Conv(8, 8, 4),), image="hwc").size


def test_initial_weights_are_orthogonal_with_their_gain_and_repeat_by_seed() -> None:
    spec = NetSpec(
        (6,),
        (Head("policy", 3, (Dense(8),), gain=0.01), Head("log_std", 3, gain=-0.5, free=True)),
        normalise=True,
    )
    vector = spec.initial_vector(3)
    assert np.array_equal(vector, spec.initial_vector(3))
    assert not np.array_equal(vector, spec.initial_vector(4))
    part = {p.name: vector[p.offset : p.end].reshape(p.shape) for p in spec.parameters}
    first, last = part["policy0.weight"], part["policy.weight"]
    np.testing.assert_allclose(first @ first.T, 2 * np.eye(6), atol=1e-5)
    np.testing.assert_allclose(last.T @ last, 1e-4 * np.eye(3), atol=1e-9)
    assert (part["policy0.bias"] == 0).all()
    assert (part["log_std"] == -0.5).all()
    statistics = spec.initial_statistics()
    assert statistics[MEAN].tolist() == [0] * 6
    assert statistics[SCALE].tolist() == [1] * 6


OBS = [ObsSpec((4,), "<f4"), ObsSpec((84, 84, 4), "|u1", "hwc"), ObsSpec((4, 10, 10), "<f4", "chw")]
ACTIONS = [
    ActionSpec("categorical", (5,)),
    ActionSpec("categorical", (2, 3)),
    ActionSpec("gaussian", (2,), (-1.0, -1.0), (1.0, 1.0)),
]


@pytest.mark.parametrize(("obs", "action"), list(itertools.product(OBS, ACTIONS)))
@pytest.mark.parametrize(
    "config", [NetConfig(), NetConfig(hidden=(8,), shared=True, normalise=True, log_std=-1.0)]
)
def test_actor_critics_have_the_heads_that_the_spaces_ask_for(
    obs: ObsSpec, action: ActionSpec, config: NetConfig
) -> None:
    spec = actor_critic(config, Spaces(obs, action, None))
    vector = spec.initial_vector(0)
    rows = np.zeros((2, *obs.shape), obs.dtype)
    acting = actor(spec)
    acting.load(vector, spec.initial_statistics())
    assert acting.forward(rows, "policy").shape == (2, action.outputs)
    assert acting.forward(rows, "value").shape == (2, 1)
    assert spec.normalise == (config.normalise and not obs.image)
    assert bool(spec.trunk) == (config.shared or bool(obs.image))
    if action.kind == "gaussian":
        assert (acting.forward(rows, "log_std") == config.log_std).all()
    else:
        assert "log_std" not in {head.name for head in spec.heads}


@pytest.mark.parametrize("size", [1000, 300_000])
def test_adam_with_long_and_short_gradients_is_torchs(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    vector, gradient = torch.randn(size, generator=generator), torch.zeros(size)
    copy = vector.clone().requires_grad_()
    theirs, ours = torch.optim.Adam([copy], lr=1e-3, betas=(0.9, 0.999), eps=1e-5), Adam(vector, gradient)
    for scale in (1.0, 1e-4, 3.0, 1e-3):
        gradient.copy_(scale * torch.randn(size, generator=generator))
        copy.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_([copy], 1.0)
        theirs.step()
        ours.clip(1.0)
        ours.step(1e-3)
        torch.testing.assert_close(vector, copy.detach(), atol=1e-6, rtol=1e-5)


INPUTS = {
    "dense": NetSpec((5,), (Head("policy", 3, (Dense(7),)), Head("value", 1, (Dense(7),)))),
    "shared": NetSpec((5,), (Head("policy", 3), Head("value", 1)), (Dense(6, "tanh"), Dense(4, "tanh"))),
    "normalised": NetSpec((2, 3), (Head("policy", 3, (Dense(7),)), Head("value", 1)), normalise=True),
    "image": NetSpec((2, 8, 9), (Head("policy", 3), Head("value", 1)), (Conv(3, 3, 2, "tanh"),), image="chw"),
    "channels last": NetSpec(
        (8, 9, 2), (Head("policy", 3), Head("value", 1)), (Conv(3, 3, 2, "tanh"), Dense(4)), image="hwc"
    ),
}


@pytest.mark.parametrize("name", INPUTS)
def test_the_gradient_of_the_observations_is_the_slope_of_the_outputs(name: str) -> None:
    spec = INPUTS[name]
    net = TorchNet(spec, random_vector(spec, 3), random_statistics(spec, 3))
    generator = torch.Generator().manual_seed(4)
    obs = torch.randn(6, *spec.input_shape, generator=generator)
    weights = [torch.randn(6, size, generator=generator) for size in (3, 1)]

    def total(seen: torch.Tensor) -> float:
        outputs = net.forward(seen, "policy", "value")
        return sum(float((w.double() * o.double()).sum()) for w, o in zip(weights, outputs, strict=True))

    net.forward(obs, "policy", "value")
    gradient = net.backward(weights, wanted=True)
    assert gradient is not None
    assert gradient.shape == obs.shape
    for _ in range(5):
        way = torch.randn(obs.shape, generator=generator)
        slope = (total(obs + 1e-3 * way) - total(obs - 1e-3 * way)) / 2e-3
        assert float((gradient.double() * way).sum()) == pytest.approx(slope, rel=2e-2, abs=2e-2)


def test_pixels_and_inputs_that_are_cut_have_their_own_slopes() -> None:
    spec = INPUTS["channels last"]
    net = TorchNet(spec, random_vector(spec, 3), random_statistics(spec, 3))
    pixels = torch.randint(0, 256, (2, *spec.input_shape), dtype=torch.uint8)
    gradients = []
    for obs in (pixels, pixels.float() / 255):
        net.forward(obs, "policy")
        gradients.append(net.backward([torch.ones(2, 3)], wanted=True))
    torch.testing.assert_close(gradients[0], gradients[1] / 255)
    spec = INPUTS["normalised"]
    net = TorchNet(spec, random_vector(spec, 3), random_statistics(spec, 3))
    obs = torch.zeros(1, *spec.input_shape)
    obs[0, 1, 2] = 1e6  # far beyond where inputs are cut
    net.forward(obs, "policy")
    gradient = net.backward([torch.ones(1, 3)], wanted=True)
    assert gradient[0, 1, 2] == 0
    assert gradient[0, 0, 0] != 0


def test_adam_without_torchs_kernel_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    for fused in (True, False):
        monkeypatch.setattr("manyhands.nets.adam.FUSED", fused)
        generator = torch.Generator().manual_seed(1)
        vector, gradient = torch.randn(50, generator=generator), torch.zeros(50)
        optimizer = Adam(vector, gradient)
        for norm in (0.1, 1e6) * 10:
            gradient.copy_(torch.randn(50, generator=generator))
            optimizer.clip(norm)
            optimizer.step(1e-2)
        ended.append(vector)
    torch.testing.assert_close(ended[0], ended[1], rtol=1e-5, atol=1e-6)
