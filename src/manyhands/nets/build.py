"""Builds a NetSpec from settings and spaces, and from a NetSpec what acts or learns."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from manyhands.config.settings import NetConfig
from manyhands.core.errors import need_library
from manyhands.core.networks import Conv, Dense, Head, NetSpec
from manyhands.core.roles import Actor, Net
from manyhands.core.spaces import ObsSpec, Spaces
from manyhands.core.weights import Weights


def actor(spec: NetSpec) -> Actor:
    """Return an actor: NumPy's for dense networks (faster, and without torch), torch's for convolutions."""
    if any(isinstance(layer, Conv) for layer in spec.trunk):
        need_library("a network with convolutions", "torch")
        from manyhands.nets.torch_net import TorchActor

        return TorchActor(spec)
    from manyhands.nets.numpy_net import NumpyNet

    return NumpyNet(spec)


def learning_net(spec: NetSpec, weights: Weights) -> Net:
    """Return a network that learns, starting with these weights."""
    from manyhands.nets.torch_net import TorchNet

    return TorchNet(spec, weights.vector, weights.beside)


def actor_critic(config: NetConfig, spaces: Spaces) -> NetSpec:
    """Return a policy head and a value head, apart or on one trunk.

    The policy's last layer starts small, so that the first policy is close to uniform
    (Andrychowicz et al. 2021).
    """
    heads = [Head("policy", spaces.action.outputs, gain=0.01), Head("value", 1, gain=1.0)]
    return with_heads(config, spaces, heads + spread_head(config, spaces))


def spread_head(config: NetConfig, spaces: Spaces) -> list[Head]:
    """Return the head of a gaussian policy's log standard deviations, unless the algorithm acts by itself."""
    if spaces.action.kind != "gaussian" or spaces.action.algo:
        return []
    return [Head("log_std", spaces.action.sizes[0], gain=config.log_std, free=True)]


def own_heads(config: NetConfig, spaces: Spaces, sizes: Mapping[str, int]) -> NetSpec:
    """Return heads of these sizes by name; outputs start small."""
    found = [Head(name, size, gain=0.1) for name, size in sizes.items()]
    return with_heads(config, spaces, found + spread_head(config, spaces))


def with_heads(config: NetConfig, spaces: Spaces, heads: Sequence[Head]) -> NetSpec:
    """Return these heads, with the hidden layers that the settings ask for: each its own, or on one trunk."""
    layers = tuple(Dense(size, config.activation) for size in config.hidden)
    trunk: tuple[Dense | Conv, ...] = convolutions(config, spaces.obs) + layers
    shared = config.shared or bool(spaces.obs.image)
    apart = () if shared else layers
    return NetSpec(
        input_shape=spaces.obs.shape,
        heads=tuple(head if head.free else replace(head, hidden=apart) for head in heads),
        trunk=trunk if shared else (),
        image=spaces.obs.image,
        normalise=config.normalise and not spaces.obs.image,
    )


def q_network(config: NetConfig, spaces: Spaces) -> NetSpec:
    """Return a network for the values of all actions."""
    layers = tuple(Dense(size, config.activation) for size in config.hidden)
    return NetSpec(
        input_shape=spaces.obs.shape,
        heads=(Head("policy", spaces.action.outputs, layers, gain=0.1),),
        trunk=convolutions(config, spaces.obs),
        image=spaces.obs.image,
        normalise=config.normalise and not spaces.obs.image,
    )


def convolutions(config: NetConfig, obs: ObsSpec) -> tuple[Conv, ...]:
    """Return Atari agents' convolutions for screens; one small one for boards such as MinAtar's."""
    if not obs.image:
        return ()
    height, width = obs.shape[1:] if obs.image == "chw" else obs.shape[:2]
    if min(height, width) >= 36:
        if config.filters == "small":
            return (Conv(16, 8, 4), Conv(32, 4, 2))
        return (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1))
    return (Conv(16, min(3, height, width), 1),)
