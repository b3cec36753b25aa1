"""From settings and spaces to a NetSpec, and from a NetSpec to what acts."""

import numpy as np

from manyhands.config.settings import NetConfig
from manyhands.core.actions import ActionSpec
from manyhands.core.arrays import Float32
from manyhands.core.networks import Conv, Dense, Head, NetSpec
from manyhands.core.roles import Actor
from manyhands.core.spaces import ObsSpec, Spaces


def actor(spec: NetSpec) -> Actor:
    """NumPy for dense networks (faster, and no torch in the worker), torch for convolutions."""
    if any(isinstance(layer, Conv) for layer in spec.trunk):
        from manyhands.nets.torch_net import TorchActor

        return TorchActor(spec)
    from manyhands.nets.numpy_net import NumpyNet

    return NumpyNet(spec)


def exploration_of(actor: Actor, action: ActionSpec, obs: Float32) -> Float32:
    """How far someone who judges an agent lets it stray from what it thinks best."""
    if action.kind == "gaussian":
        return actor.forward(obs, "log_std")
    return np.full(1, action.epsilon, np.float32)


def actor_critic(config: NetConfig, spaces: Spaces) -> NetSpec:
    """A policy head and a value head, apart or on one trunk.

    The policy's last layer starts small, so that the first policy is close to uniform
    (Andrychowicz et al. 2021).
    """
    layers = tuple(Dense(size, config.activation) for size in config.hidden)
    trunk: tuple[Dense | Conv, ...] = convolutions(config, spaces.obs) + layers
    shared = config.shared or bool(spaces.obs.image)
    apart = () if shared else layers
    heads = [
        Head("policy", spaces.action.outputs, apart, gain=0.01),
        Head("value", 1, apart, gain=1.0),
    ]
    if spaces.action.kind == "gaussian":
        heads.append(Head("log_std", spaces.action.sizes[0], gain=config.log_std, free=True))
    return NetSpec(
        input_shape=spaces.obs.shape,
        heads=tuple(heads),
        trunk=trunk if shared else (),
        image=spaces.obs.image,
        normalise=config.normalise and not spaces.obs.image,
    )


def q_network(config: NetConfig, spaces: Spaces, lanes: int) -> NetSpec:
    """The values of all actions; and how often each lane explores, which a learner decides."""
    layers = tuple(Dense(size, config.activation) for size in config.hidden)
    return NetSpec(
        input_shape=spaces.obs.shape,
        heads=(
            Head("policy", spaces.action.outputs, layers, gain=0.1),
            Head("epsilon", lanes, gain=1.0, free=True),
        ),
        trunk=convolutions(config, spaces.obs),
        image=spaces.obs.image,
        normalise=config.normalise and not spaces.obs.image,
    )


def convolutions(config: NetConfig, obs: ObsSpec) -> tuple[Conv, ...]:
    """Those of Atari agents for screens; one small one for boards such as MinAtar's."""
    if not obs.image:
        return ()
    height, width = obs.shape[1:] if obs.image == "chw" else obs.shape[:2]
    if min(height, width) >= 36:
        if config.filters == "small":
            return (Conv(16, 8, 4), Conv(32, 4, 2))
        return (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1))
    return (Conv(16, min(3, height, width), 1),)
