"""Gymnasium's Box2D environments without their two faults: a leak, and a slow lander.

Box2D's Python binding never frees the shape that a fixture was defined with, 1.6 kB for every episode of
LunarLander. And only 21 of the 53 us of a LunarLander step are physics; the rest is Python that `Lander`
says more briefly, with the same numbers to the last bit, which a test compares.
"""

import hashlib
import inspect
import math
from functools import cache
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
from Box2D import b2FixtureDef, b2World
from Box2D.b2 import edgeShape, fixtureDef, polygonShape
from gymnasium.envs.box2d import lunar_lander
from gymnasium.envs.box2d.lunar_lander import FPS, SCALE, VIEWPORT_H, VIEWPORT_W
from gymnasium.envs.registration import EnvSpec

WRITTEN_FOR = "d8978e0e020fbe922f93d7c4f98cde573ba2175ca2014cc7d87eb4223e82c93a"
"""The hash of Gymnasium's lander whose numbers `Lander` repeats. With any other source, theirs is played."""
LunarLander: Any = lunar_lander.LunarLander
ContactDetector: Any = lunar_lander.ContactDetector
HALF_WIDTH, HALF_HEIGHT = VIEWPORT_W / SCALE / 2, VIEWPORT_H / SCALE / 2
MAIN_POWER, SIDE_POWER = lunar_lander.MAIN_ENGINE_POWER, lunar_lander.SIDE_ENGINE_POWER
MAIN_FUEL, SIDE_FUEL = 0.30, 0.03
MAIN_BELOW = lunar_lander.MAIN_ENGINE_Y_LOCATION / SCALE
SIDE_HEIGHT = lunar_lander.SIDE_ENGINE_HEIGHT
CHUNKS = 11
MAIN = 2
NOISE = 64
"""Random numbers that are drawn at once; an even number."""


def patch(spec: EnvSpec) -> None:
    """Lets `spec` make the same environment without the faults that can be helped."""
    _free_shapes()
    if spec.entry_point == "gymnasium.envs.box2d.lunar_lander:LunarLander" and _is_known():
        spec.entry_point = "manyhands.envs.box2d:Lander"


@cache
def _is_known() -> bool:
    source = inspect.getsource(lunar_lander)
    return hashlib.sha256(source.encode()).hexdigest() == WRITTEN_FOR


@cache
def _free_shapes() -> None:
    """Let a fixture's definition hold its shape, where Box2D gives it to no one."""
    theirs = b2FixtureDef.shape

    def hold(definition: Any, shape: Any) -> None:
        theirs.fset(definition, shape)
        if shape is not None:
            shape.thisown = True
        definition.held_shape = shape

    b2FixtureDef.shape = property(theirs.fget, hold)


class Lander(LunarLander):  # type: ignore[misc]
    """LunarLander with discrete actions, no wind and no picture. Everything else it leaves to Gymnasium's."""

    starts = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.brief = not self.continuous and not self.enable_wind and self.render_mode is None
        self.noise: list[float] = []  # drawn ahead, the next one last
        self.fuel: float | None = None  # of a step that was started
        self.helipad_y = VIEWPORT_H / SCALE / 4
        self.pad_y = self.helipad_y + lunar_lander.LEG_DOWN / SCALE
        self.edge = edgeShape(vertices=[(0, 0), (2 * HALF_WIDTH, 0)])
        self.floor, self.ground = (
            fixtureDef(shape=self.edge),
            fixtureDef(shape=self.edge, density=0, friction=0.1),
        )
        hull = [(x / SCALE, y / SCALE) for x, y in lunar_lander.LANDER_POLY]
        only_ground = {"restitution": 0.0, "maskBits": 0x001}
        self.hull = fixtureDef(
            shape=polygonShape(vertices=hull), density=5.0, friction=0.1, categoryBits=0x0010, **only_ground
        )
        box = polygonShape(box=(lunar_lander.LEG_W / SCALE, lunar_lander.LEG_H / SCALE))
        self.shin = fixtureDef(shape=box, density=1.0, categoryBits=0x0020, **only_ground)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if not self.brief:
            return super().reset(seed=seed, options=options)
        if self.noise and seed is None:
            self.np_random.bit_generator.advance(-len(self.noise))  # as if never drawn
        self.noise.clear()
        self.fuel = None
        gymnasium.Env.reset(self, seed=seed)
        self._destroy()
        self.world = world = b2World(gravity=(0, self.gravity))
        world.contactListener_keepref = world.contactListener = ContactDetector(self)
        self.game_over, self.prev_shaping = False, 0.0
        self._make_moon()
        self.lander = world.CreateDynamicBody(position=(HALF_WIDTH, 2 * HALF_HEIGHT), angle=0.0)
        self.lander.CreateFixture(self.hull)
        push = lunar_lander.INITIAL_RANDOM
        draw = self.np_random.uniform
        self.lander.ApplyForceToCenter((draw(-push, push), draw(-push, push)), True)
        self.legs = [self._make_leg(side) for side in (-1, +1)]
        # Both point into the body, so they are always of the moment.
        self.place, self.speed = self.lander.position, self.lander.linearVelocity
        return self.step(0)[0], {}

    def _make_moon(self) -> None:
        height = self.np_random.uniform(0, HALF_HEIGHT, size=CHUNKS + 1)
        height[CHUNKS // 2 - 2 : CHUNKS // 2 + 3] = self.helipad_y
        rough = height.tolist()
        smooth = [0.33 * (rough[i - 1] + rough[i] + rough[i + 1]) for i in range(CHUNKS)]
        across = [2 * HALF_WIDTH / (CHUNKS - 1) * i for i in range(CHUNKS)]
        points = list(zip(across, smooth, strict=True))
        self.moon = self.world.CreateStaticBody()
        self.edge.vertices = [(0, 0), (2 * HALF_WIDTH, 0)]
        self.moon.CreateFixture(self.floor)
        for ends in pairwise(points):
            self.edge.vertices = ends
            self.moon.CreateFixture(self.ground)

    def _make_leg(self, side: int) -> Any:
        away = side * lunar_lander.LEG_AWAY / SCALE
        leg = self.world.CreateDynamicBody(position=(HALF_WIDTH - away, 2 * HALF_HEIGHT), angle=side * 0.05)
        leg.CreateFixture(self.shin)
        leg.ground_contact = False
        lower, upper = (0.9 - 0.5, 0.9) if side < 0 else (-0.9, -0.9 + 0.5)
        leg.joint = self.world.CreateRevoluteJoint(
            bodyA=self.lander,
            bodyB=leg,
            localAnchorA=(0, 0),
            localAnchorB=(away, lunar_lander.LEG_DOWN / SCALE),
            enableMotor=True,
            enableLimit=True,
            maxMotorTorque=lunar_lander.LEG_SPRING_TORQUE,
            motorSpeed=0.3 * side,
            lowerAngle=lower,
            upperAngle=upper,
        )
        return leg

    def start(self, action: Any) -> None:
        """Compute the physics of a step; `step` does the rest.

        Several landers one after the other, first all their physics and then all the rest, are faster than
        in turns: each of the two is a lot of code.
        """
        if not self.brief:
            return
        assert self.action_space.contains(action), f"{action!r} is no action of LunarLander"
        lander, place, noise = self.lander, self.place, self.noise
        if not noise:
            noise += ((2.0 * self.np_random.random(NOISE) - 1.0) / SCALE)[::-1].tolist()
        first, second = noise.pop(), noise.pop()
        fuel = 0.0
        if action:
            angle = lander.angle
            sin, cos = math.sin(angle), math.cos(angle)
            if action == MAIN:
                along = MAIN_BELOW + 2 * first
                x, y = sin * along - cos * second, -cos * along - sin * second
                power, fuel = MAIN_POWER, MAIN_FUEL
                point = (place.x + x, place.y + y)
            else:
                across = 3 * second + (action - 2) * lunar_lander.SIDE_ENGINE_AWAY / SCALE
                x, y = sin * first - cos * across, -cos * first - sin * across
                power, fuel = SIDE_POWER, SIDE_FUEL
                point = (place.x + x - sin * 17 / SCALE, place.y + y + cos * SIDE_HEIGHT / SCALE)
            lander.ApplyLinearImpulse((-x * power, -y * power), point, True)
        self.world.Step(1.0 / FPS, 6 * 30, 2 * 30)
        self.fuel = fuel

    def step(self, action: Any) -> Any:
        if not self.brief:
            return super().step(action)
        if self.fuel is None:
            self.start(action)
        fuel, self.fuel = self.fuel, None
        lander, place, speed = self.lander, self.place, self.speed
        angle = lander.angle
        x, y = (place.x - HALF_WIDTH) / HALF_WIDTH, (place.y - self.pad_y) / HALF_HEIGHT
        dx, dy = speed.x * HALF_WIDTH / FPS, speed.y * HALF_HEIGHT / FPS
        left = 1.0 if self.legs[0].ground_contact else 0.0
        right = 1.0 if self.legs[1].ground_contact else 0.0
        state = (x, y, dx, dy, angle, 20.0 * lander.angularVelocity / FPS, left, right)
        shaping = (
            -100 * math.sqrt(x * x + y * y)
            - 100 * math.sqrt(dx * dx + dy * dy)
            - 100 * abs(angle)
            + 10 * left
            + 10 * right
        )
        reward = shaping - self.prev_shaping - fuel
        self.prev_shaping = shaping
        terminated = False
        if self.game_over or abs(x) >= 1.0:
            terminated, reward = True, -100.0
        if not lander.awake:
            terminated, reward = True, 100.0
        return np.array(state, np.float32), reward, terminated, False, {}
