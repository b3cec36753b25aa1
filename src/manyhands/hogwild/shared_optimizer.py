"""Optimizers whose numbers lie in memory that several processes share, and that none of them locks.

Hogwild! (Niu et al. 2011): a process may overwrite what another one has just written. Steps are small, so
what is lost is small.
"""

import numpy as np

from manyhands.core.arrays import Array, Float32
from manyhands.hogwild.algorithm import HogwildConfig

KEPT = {"sgd": 1, "rmsprop": 1, "adam": 2}
"""Numbers that an optimizer keeps for each one that it moves."""
RMS_DECAY, RMS_EPSILON = 0.99, 1e-6
BETA1, BETA2, ADAM_EPSILON = 0.9, 0.999, 1e-5


class SharedOptimizer:
    """Moves `vector` [n], with `state` [k, n], `clock` [1] and `left` [1] beside it, all of them shared.

    `left` is the part of the rate of learning that is left, where it falls to 0.
    """

    def __init__(
        self, config: HogwildConfig, vector: Float32, state: Float32, clock: Array, left: Float32
    ) -> None:
        self.config, self.vector, self.state = config, vector, state
        self.clock, self.left = clock, left

    def step(self, gradient: Float32) -> None:
        config, theta = self.config, self.vector
        rate = np.float32(config.learning_rate) * self.left[0]
        self.clock[0] += 1
        if config.max_grad_norm:
            length = float(np.sqrt(gradient @ gradient))
            if length > config.max_grad_norm:
                gradient = gradient * np.float32(config.max_grad_norm / length)
        if config.weight_decay:
            gradient = gradient + np.float32(config.weight_decay) * theta
        if config.optimizer == "sgd":  # v <- momentum v + g;  theta <- theta - rate v
            velocity = self.state[0]
            velocity *= np.float32(config.momentum)
            velocity += gradient
            theta -= rate * velocity
        elif config.optimizer == "rmsprop":  # s <- d s + (1 - d) g^2;  theta <- theta - rate g / sqrt(s)
            square = self.state[0]
            square *= np.float32(RMS_DECAY)
            square += np.float32(1 - RMS_DECAY) * gradient * gradient
            theta -= rate * self._bounded(gradient / (np.sqrt(square) + np.float32(RMS_EPSILON)))
        else:  # Kingma & Ba 2015
            mean, square = self.state
            mean += np.float32(1 - BETA1) * (gradient - mean)
            square += np.float32(1 - BETA2) * (gradient * gradient - square)
            steps = int(self.clock[0])
            scale = np.float32(np.sqrt(1 - BETA2**steps) / (1 - BETA1**steps))
            theta -= rate * self._bounded(scale * mean / (np.sqrt(square) + np.float32(ADAM_EPSILON)))

    def _bounded(self, update: Float32) -> Float32:
        """Return the update, cut to a root mean square of at most `max_update` (Shazeer & Stern 2018).

        What a network has hardly ever seen, such as a leg on the ground, has small mean squares, and the
        first steps for it would be large enough to settle for good what to do then.
        """
        most = self.config.max_update
        if most:
            size = float(np.sqrt(np.square(update).mean()))
            if size > most:
                update *= np.float32(most / size)
        return update
