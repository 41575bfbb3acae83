"""Fine-tuning: training that starts from weights that are there already."""

from __future__ import annotations

from torch import nn

from worldgym.errors import InvalidConfig


def start_from(network: nn.Module, other: nn.Module, *, name: str) -> None:
    """Copy all weights of another network of the same shape.

    Args:
        network: What will be trained.
        other: Where the weights are.
        name: What to call ``other`` in an error.

    Raises:
        InvalidConfig: If the two differ in shape; the first differences are named.
    """
    mine = {key: tuple(value.shape) for key, value in network.state_dict().items()}
    theirs = {key: tuple(value.shape) for key, value in other.state_dict().items()}
    if different := [key for key in sorted({*mine, *theirs}) if mine.get(key) != theirs.get(key)]:
        examples = [f"{key}: {theirs.get(key)} there, {mine.get(key)} here" for key in different[:3]]
        raise InvalidConfig(
            f"training cannot start from {name}: its network has another form ({'; '.join(examples)}): "
            f"choose the same dim, layers, patch_size, channels, ..."
        )
    network.load_state_dict(other.state_dict())
