"""Training of the packaged learned policies by imitation of the twin's expert, in rounds.

What is here:
    * ``PolicyTraining``: what and how. ``train_policy``: one run, from nothing to a policy folder.
    * ``policy_loss``: imitation, and what is seen, supervised by the twin.

Each round adds demonstrations and trains on all there are so far. In the first round the disturbed expert
acts, in each later one the policy of the round before, labelled by the expert (``demonstrations``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from rich.progress import Progress
from torch import Tensor, nn

from worldgym.errors import InvalidConfig
from worldgym.policies.learned import LearnedPolicy, PolicyConfig, save_policy
from worldgym.policies.network import GRIPPER_LEVELS, PolicyNetwork
from worldgym.training.demonstrations import asked_tasks, collect_round
from worldgym.training.lessons import Lessons, choose_palette
from worldgym.training.loop import (
    Draw,
    LoopConfig,
    Run,
    batch_indices,
    batch_sampler,
    is_first_process,
    train,
)

POLICY_FOLDER = "policy"


@dataclass(frozen=True)
class PolicyTraining:
    """What to train a policy on, and how.

    Attributes:
        data: Folder of demonstrations; rounds that it does not hold are collected.
        rounds: Episodes of each round.
        share: Part of the episodes that is trained on.
        keep: Steps at which the policy is kept too, as ``policy_STEP``; the run stops there in between.
        colours: Colours that the policy tells apart.
        hidden: Width of its network.
        sight_weight: Weight of seeing beside acting.
        workers: Processes that collect.
        loop: The loop.
    """

    data: str
    rounds: tuple[int, ...] = (800, 200)
    share: float = 1.0
    keep: tuple[int, ...] | None = None
    colours: int = 32
    hidden: int = 192
    sight_weight: float = 0.5
    workers: int = 2
    loop: LoopConfig = field(
        default_factory=lambda: LoopConfig(
            steps=4_000, batch_size=256, learning_rate=2e-3, ema=0.99, validate_every=500, compile=False
        )
    )

    def __post_init__(self) -> None:
        if not self.rounds or min(self.rounds) < 1:
            raise InvalidConfig(f"rounds must hold at least one number of episodes, got {self.rounds}")
        if not 0 < self.share <= 1:
            raise InvalidConfig(f"share must be above 0 and at most 1, got {self.share}")
        if min(self.colours, self.hidden) < 2:
            raise InvalidConfig(f"colours and hidden must be at least 2, got {self.colours}, {self.hidden}")
        if self.workers < 1:
            raise InvalidConfig(f"workers must be at least 1, got {self.workers}")
        if self.loop.max_minutes is not None:
            raise InvalidConfig("max_minutes cannot be kept: interrupt the run and start it again instead")
        if any(not 0 < step <= self.loop.steps for step in self.keep or ()):
            raise InvalidConfig(f"keep must hold steps from 1 to {self.loop.steps}, got {self.keep}")


def train_policy(config: PolicyTraining, run: str | Path) -> Path:
    """Train a policy, or continue.

    Args:
        config: What and how.
        run: Folder of the run.

    Returns:
        The folder of the finished policy, ``policy`` in the run.

    Raises:
        DataError: If demonstrations cannot be read.
        InvalidConfig: If the configuration does not fit the run in the folder.
        MissingExtra: If MuJoCo is not installed.
    """
    run = Path(run)
    lessons = Lessons(config.data, share=config.share)
    policy: LearnedPolicy | None = None
    for number, episodes in enumerate(config.rounds):
        _collect(config, number, episodes, policy)
        lessons.read(number)
        if number == 0:
            palette = choose_palette(lessons.frames, config.colours, seed=config.loop.seed)
            settings = PolicyConfig(asked_tasks(), palette, config.hidden)
            torch.manual_seed(config.loop.seed)
            network = settings.network()
            lessons.acquaint(network)
        lessons.look(network)
        for steps in _stops(config, number):
            averaged = _train_until(config, network, lessons, run, steps=steps)
            trained = {"steps": steps, "share": config.share, "rounds": list(config.rounds[: number + 1])}
            finished = replace(settings, trained=trained)
            kept = run / f"{POLICY_FOLDER}_{steps}"
            # one that is there already is of this step; a resumed run may be further
            if is_first_process() and steps in (config.keep or ()) and not kept.exists():
                save_policy(kept, averaged, finished)
        policy = LearnedPolicy(averaged, finished)
    if is_first_process():
        save_policy(run / POLICY_FOLDER, averaged, finished)
    return run / POLICY_FOLDER


def _collect(config: PolicyTraining, number: int, episodes: int, policy: LearnedPolicy | None) -> None:
    """The demonstrations of a round, unless they are there."""
    with Progress(disable=not config.loop.progress) as bar:
        show = partial(bar.update, bar.add_task(f"round {number + 1}", total=episodes))
        collect_round(
            config.data,
            number,
            episodes=episodes,
            seed=config.loop.seed,
            policy=policy,
            workers=config.workers,
            on_episode=lambda done, of: show(completed=done),
        )


def _stops(config: PolicyTraining, number: int) -> list[int]:
    """Steps at which a round's training halts: where the policy is kept, and at the end."""
    count = len(config.rounds)
    first, last = (config.loop.steps * part // count for part in (number, number + 1))
    return sorted({last, *(step for step in config.keep or () if first < step <= last)})


def _train_until(
    config: PolicyTraining, network: PolicyNetwork, lessons: Lessons, run: Path, *, steps: int
) -> PolicyNetwork:
    """Go on with the run up to a step; its averaged network."""
    # the rate falls over the last third of the whole run, whatever the stop
    falling = config.loop.steps // 3 if steps == config.loop.steps else 0
    loop = replace(config.loop, steps=steps, decay_steps=falling)
    sampler = batch_sampler(len(lessons.chosen), loop)

    def loss(network: nn.Module, draw: Draw, device: torch.device) -> Tensor:
        batch = lessons.batch(lessons.chosen[batch_indices(sampler, draw)], device, draw.generator())
        return policy_loss(network, *batch, sight_weight=config.sight_weight)[0]

    def validate(network: nn.Module, step: int, folder: Path) -> dict[str, float]:
        if not len(lessons.held_out):
            return {}
        batch = lessons.batch(lessons.held_out, next(network.parameters()).device)
        total, parts = policy_loss(network, *batch, sight_weight=config.sight_weight)
        return {"loss": total.item(), **{name: value.item() for name, value in parts.items()}}

    left_out = ("loop", "keep", "data", "rounds", "workers")
    description = {key: value for key, value in asdict(config).items() if key not in left_out}
    averaged = train(Run(network, loss, validate, description), loop, run)
    assert isinstance(averaged, PolicyNetwork)
    return averaged


def policy_loss(
    network: nn.Module, looks: Tensor, actions: Tensor, tasks: Tensor, facts: Tensor, *, sight_weight: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Huber loss of the motion, cross-entropy of the gripper, and the loss of sight.

    Args:
        network: A ``PolicyNetwork``.
        looks: (M, D) what it sees.
        actions: (M, 7) what the expert would do.
        tasks: int64 (M,).
        facts: (M, N, FACTS) what is true.
        sight_weight: Weight of the loss of sight.

    Returns:
        The loss, and its parts by name: ``motion`` is the mean absolute error of the translation in full
        scales, ``gripper`` the share of wrong gripper commands, ``place`` the mean distance in metres between
        where a thing is and where it is seen.
    """
    motion, gripper, told = network(looks, tasks)
    levels = torch.tensor(GRIPPER_LEVELS, device=actions.device)
    wanted = (actions[:, 6:] - levels).abs().argmin(-1)
    scale = torch.tensor([1.0, 1.0, 1.0, 0.3, 0.3, 0.5], device=actions.device)
    errors = F.smooth_l1_loss(motion * scale, actions[:, :6] * scale, beta=0.1, reduction="none")
    gripping = F.cross_entropy(gripper, wanted)
    there = facts[..., 8]
    away = (told[..., :3] - facts[..., :3]).norm(dim=-1)
    parts = {
        "motion": (motion - actions[:, :6])[:, :3].abs().mean(),
        "gripper": (gripper.argmax(-1) != wanted).float().mean(),
        "place": 0.1 * (away * there).sum() / there.sum().clamp(min=1),
    }
    total = 2 * errors.sum(-1).mean() + 0.5 * gripping + sight_weight * sight_loss(told, facts)
    return total, parts


def sight_loss(told: Tensor, facts: Tensor) -> Tensor:
    """How wrong places, turns and states of things are.

    Args:
        told: (M, N, TOLD).
        facts: (M, N, FACTS).
    """
    there = facts[..., 8]
    place = F.smooth_l1_loss(told[..., :3], facts[..., :3], beta=0.05, reduction="none").sum(-1)
    turn = F.smooth_l1_loss(told[..., 3:5], facts[..., 3:5], beta=0.3, reduction="none").sum(-1)
    state = F.binary_cross_entropy_with_logits(told[..., 5], facts[..., 5], reduction="none")
    seen = 2 * place + 0.3 * turn + 0.3 * state
    present = F.binary_cross_entropy_with_logits(told[..., 6], there)
    return (seen * there).sum() / there.sum().clamp(min=1) + 0.2 * present
