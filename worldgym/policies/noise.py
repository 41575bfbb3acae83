"""``noisy``: an action with noise, disturbed like the families ``noise_*`` in the twin's data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def noisy(action: npt.ArrayLike, level: float, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """An action (7,) with normal noise, within [-1, 1].

    Args:
        action: In ``worldgym.actions.ENV_SPEC``.
        level: Standard deviation as a part of the full scale; half of it for turns. With a chance of 0.3
            times the deviation the gripper's command is reversed.
        rng: What is drawn from it does not depend on the action.
    """
    noise = rng.normal(0, level, 7)
    noise[3:6] *= 0.5
    disturbed = np.array(action, np.float64)
    if rng.random() < 0.3 * level:
        disturbed[6] = -disturbed[6]
    return np.clip(disturbed + noise, -1, 1).astype(np.float32)
