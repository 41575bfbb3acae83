"""The network of the packaged learned policies: a frame and a task to the next action.

What is here:
    * ``PolicyNetwork``: finds each thing it knows by its mixture of colours, and the gripper, whose colour
      the whole arm has, in a small picture. That does not depend on the instruction. Then it decides from
      the gripper and the task's two things.
    * ``FACTS``: what the twin says about a thing in a frame, in numbers.

The twin can supervise the first half in every frame, which saves most of the demonstrations.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from worldgym.policies.palette import (
    SMALL,
    SUMS,
    Palette,
    cells_of,
    colour_sums,
    label_table,
    moments,
    thumbnails,
)
from worldgym.policies.wordings import Wordings

FACTS = 9
"""Numbers about a thing: place x, y, z (from the middle of the table, in 0.1 m); two about how it lies
(cosine and sine of its yaw as often as it looks the same in a turn; of the gripper yaw and pitch in 0.25
rad); whether it is held (of the gripper: how far it is open); x and y in the picture (0 to 1); whether it is
there."""
TOLD = 7
"""Numbers that the network tells about a thing: place (3), how it lies (2), logits of held (of the gripper:
of how far it is open) and of being there."""
GRIPPER_LEVELS = (-1.0, 0.2, 1.0)
"""What the gripper can be told: closed, open a little, open."""
_NAME, _KIND, _IMPRESSION, _MIXTURES, _THING = 12, 16, 32, 2, 96


class PolicyNetwork(nn.Module):
    """Chooses actions from single frames.

    Args:
        wordings: The tasks.
        palette: The colours that it tells apart, each from 0 to 255.
        hidden: Width.
    """

    table: Tensor
    targets: Tensor
    goals: Tensor
    kinds: Tensor

    def __init__(self, wordings: Wordings, palette: Palette, *, hidden: int = 256) -> None:
        super().__init__()
        names, kinds, tasks = wordings.names, wordings.kinds, wordings.tasks
        self.colours = len(palette)
        self.things = len(names)
        self.mixtures = nn.Parameter(torch.randn(self.things, _MIXTURES, self.colours) * 0.3)
        self.seen = nn.Linear(3 * SMALL**2, hidden)
        self.understood = nn.Linear(hidden, hidden)
        self.telling_hand = nn.Linear(hidden, TOLD)
        self.impression = nn.Linear(hidden, _IMPRESSION)
        self.telling = nn.Sequential(
            nn.Linear(_MIXTURES * SUMS + _NAME + TOLD + _IMPRESSION, _THING),
            nn.SiLU(),
            nn.Linear(_THING, _THING),
            nn.SiLU(),
            nn.Linear(_THING, TOLD),
        )
        self.name_embedding = nn.Embedding(self.things, _NAME)
        self.kind_embedding = nn.Embedding(len(kinds), _KIND)
        asked = _KIND + 2 * _NAME
        self.into = nn.Linear(3 * TOLD + 6 + _IMPRESSION + asked, hidden)
        self.gate = nn.Linear(asked, hidden)
        self.between = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 6 + len(GRIPPER_LEVELS))
        number = {name: index for index, name in enumerate(names)}
        # a task without a goal looks at its target twice; its kind tells it apart
        buffers = {
            "table": torch.from_numpy(label_table(palette)),
            "targets": torch.tensor([number[task.target] for task in tasks]),
            "goals": torch.tensor([number[task.goal or task.target] for task in tasks]),
            "kinds": torch.tensor([kinds.index(task.kind) for task in tasks]),
        }
        for name, values in buffers.items():
            self.register_buffer(name, values, persistent=False)

    def look(self, frames: Tensor) -> Tensor:
        """Frames uint8 (F, 64, 64, 3) as ``forward`` takes them: float32 (F, D). Nothing here is learned."""
        sums = colour_sums(frames, self.table, self.colours)
        return torch.cat([sums.flatten(1), thumbnails(frames)], dim=1)

    def acquaint(self, frames: Tensor, facts: Tensor) -> None:
        """Begin with the colours that are more frequent where a thing is than elsewhere.

        Args:
            frames: uint8 (F, 64, 64, 3).
            facts: (F, N, FACTS).
        """
        labels = self.table[cells_of(frames).long()].long()
        everywhere = torch.bincount(labels.flatten(), minlength=self.colours).float() + 1
        size = frames.shape[1]
        for number in range(self.things):
            there = facts[:, number, 8] > 0
            x, y = (facts[there, number, 6:8] * size).long().clamp(0, size - 1).unbind(1)
            at = torch.bincount(labels[there, y, x], minlength=self.colours).float() + 1e-3
            ratio = (at / at.sum()).log() - (everywhere / everywhere.sum()).log()
            self.mixtures.data[number] += (ratio - 1).clamp(-4, 2)

    def _see(self, looks: Tensor) -> tuple[Tensor, Tensor]:
        """What is told about each thing (F, N, TOLD), and an impression of the whole (F, _IMPRESSION)."""
        sums, picture = looks[:, : self.colours * SUMS], looks[:, self.colours * SUMS :]
        hidden = F.silu(self.seen(picture))
        hidden = hidden + F.silu(self.understood(hidden))
        hand, impression = self.telling_hand(hidden), self.impression(hidden).tanh()
        mixed = torch.einsum(
            "nmk,fks->fnms", self.mixtures.sigmoid(), sums.view(-1, self.colours, SUMS)
        )  # (F, N, _MIXTURES, SUMS)
        common = torch.cat([hand, impression], dim=-1)[:, None].expand(-1, self.things, -1)
        names = self.name_embedding.weight.expand(len(looks), -1, -1)
        told = self.telling(torch.cat([moments(mixed).flatten(2), names, common], dim=-1))
        return torch.cat([hand[:, None], told[:, 1:]], dim=1), impression

    def forward(self, looks: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Decide.

        Args:
            looks: (F, D) what ``look`` gives.
            tasks: int64 (F,) number of each frame's task.

        Returns:
            Motion (F, 6) of ``worldgym.actions.ENV_SPEC``, logits (F, 3) of ``GRIPPER_LEVELS``, and what is
            told about each thing, the gripper first: (F, N, TOLD).
        """
        told, impression = self._see(looks)
        things = torch.cat([told[..., :5], told[..., 5:].sigmoid()], dim=-1)
        row = torch.arange(len(looks), device=looks.device)
        target_number, goal_number = self.targets[tasks], self.goals[tasks]
        hand, target, goal = things[:, 0], things[row, target_number], things[row, goal_number]
        asked = torch.cat(
            [
                self.kind_embedding(self.kinds[tasks]),
                self.name_embedding(target_number),
                self.name_embedding(goal_number),
            ],
            dim=-1,
        )
        ways = torch.cat([target[:, :3] - hand[:, :3], goal[:, :3] - target[:, :3]], dim=-1) * 4
        known = [hand, target, goal, ways, impression, asked]
        deciding = F.silu(self.into(torch.cat(known, dim=-1))) * (1 + self.gate(asked))
        answer = self.out(deciding + F.silu(self.between(deciding)))
        return answer[:, :6], answer[:, 6:], told
