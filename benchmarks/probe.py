"""A probe: reads from one frame where the gripper and every thing of the core tasks are, and how many.

    python benchmarks/probe.py train CLIPS RUN      on clips of ``worldgym collect``; resumable
    python benchmarks/probe.py check CLIPS          its own error on clips that it has not seen

It only sees frames of the twin, so its reading of a world model's frame does not depend on the model. For
each sight it gives a map of where its middle is; each peak is one thing. Beside the peak it says how far the
middle of the whole thing is from there, how high it is, and whether it is held (the gripper: how far open).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
import typer
from probe_frames import PLAIN, SIGHTS, SIZE, Label, LabelledFrames, draw_batch, read_frames
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from worldgym.data.clips import ClipFolder
from worldgym.errors import CheckpointError, CheckpointNotFound
from worldgym.models.codec import Residual, to_unit
from worldgym.training.codec import held_out
from worldgym.training.loop import Draw, LoopConfig, Run, batch_indices, batch_sampler, train
from worldgym.video import resize

WEIGHTS = Path(__file__).with_name("probe.safetensors")
CELL = 2
"""Pixels per cell and side of the maps."""
SPREAD = 2.2
"""Standard deviation in pixels of the peaks that it is taught."""
THRESHOLD = 0.4
"""Least height of a peak."""
_OUTPUTS = 5  # per sight: peak, x and y of the middle from the cell, height, held
_DECIMETRES = 10.0


@dataclass(frozen=True)
class Reading:
    """What the probe sees in N frames; sights as in ``SIGHTS``.

    Attributes:
        place: Middle of each thing, seen or not, float32 (N, sights, 2), pixels of a 64x64 frame; NaN where
            it sees none. Of several it is the clearest one.
        height: Of the thing's bottom above the table, metres (N, sights).
        held: Probability that it is held; for the gripper how far it is open (N, sights).
        count: How many it sees, int (N, sights).
    """

    place: npt.NDArray[np.float32]
    height: npt.NDArray[np.float32]
    held: npt.NDArray[np.float32]
    count: npt.NDArray[np.int64]


class ProbeNetwork(nn.Module):
    """Frames (M,3,64,64) in [-1, 1] to maps (M, sights, 5, 32, 32); it works at a quarter and an eighth."""

    def __init__(self, width: int = 48, deeper: int = 64) -> None:
        super().__init__()
        unit = 2 * CELL
        self.stem = nn.Sequential(nn.PixelUnshuffle(unit), nn.Conv2d(3 * unit**2, width, 3, padding=1))
        self.where = nn.Conv2d(2, width, 1)
        self.middle = Residual(width)
        self.deep = nn.Sequential(
            nn.SiLU(), nn.Conv2d(width, deeper, 3, stride=2, padding=1), Residual(deeper), Residual(deeper)
        )
        self.up = nn.Sequential(nn.Conv2d(deeper, width, 1), nn.Upsample(scale_factor=2))
        outputs = nn.Conv2d(width, 4 * _OUTPUTS * len(SIGHTS), 1)
        self.head = nn.Sequential(Residual(width), nn.SiLU(), outputs, nn.PixelShuffle(2))

    def forward(self, pixels: Tensor) -> Tensor:
        """See the class."""
        middle, deep = self.inner(pixels)
        maps: Tensor = self.head(middle + self.up(deep))
        return maps.unflatten(1, (len(SIGHTS), _OUTPUTS))

    def inner(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Inner maps (M,C,h,w) at a quarter and an eighth of the frame."""
        fine = self.stem(pixels)
        along = torch.linspace(-1, 1, fine.shape[-1])
        grid = torch.stack(torch.meshgrid(along, along, indexing="xy"))[None]
        middle = self.middle(fine + self.where(grid.to(pixels)))
        return middle, self.deep(middle)


class Probe:
    """Reads frames.

    Args:
        network: A trained network.
    """

    def __init__(self, network: ProbeNetwork) -> None:
        self.network = network.eval().requires_grad_(False).to(memory_format=torch.channels_last)

    @classmethod
    def load(cls, path: str | Path = WEIGHTS) -> Probe:
        """Load the weights that ``train`` has written.

        Raises:
            CheckpointNotFound: If they are not there.
            CheckpointError: If they are no weights of a probe with these sights.
        """
        path = Path(path)
        if not path.is_file():
            raise CheckpointNotFound(f"no probe {path}: train one with `python {__file__} train CLIPS RUN`")
        try:
            with safe_open(path, "pt") as file:
                known = json.loads((file.metadata() or {}).get("sights", "[]"))
                weights = {name: file.get_tensor(name).float() for name in file.keys()}
            if tuple(known) != SIGHTS:
                raise CheckpointError(
                    f"{path} reads {known}, but the twin has {list(SIGHTS)}: train it again"
                )
            network = ProbeNetwork()
            network.load_state_dict(weights)
        except (SafetensorError, RuntimeError, ValueError, OSError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} holds no weights of a probe: {error}") from error
        return cls(network)

    def save(self, path: str | Path) -> None:
        """Write the weights in half precision."""
        weights = {name: value.half().contiguous() for name, value in self.network.state_dict().items()}
        save_file(weights, str(path), {"sights": json.dumps(SIGHTS)})

    def read(self, frames: npt.NDArray[np.uint8], *, at_once: int = 128) -> Reading:
        """Read frames uint8 (N, H, W, 3); sizes other than 64x64 are resized first."""
        if frames.shape[1:3] != (SIZE, SIZE):
            frames = resize(frames, (SIZE, SIZE))
        parts = []
        with torch.inference_mode():
            for part in torch.from_numpy(frames).split(at_once):
                parts.append(decode_maps(self.network(to_unit(part))))
        return Reading(*(np.concatenate(values) for values in zip(*parts, strict=True)))

    def features(self, frames: npt.NDArray[np.uint8], *, at_once: int = 128) -> list[Tensor]:
        """Inner maps (N, C, h, w) of the network, for a perceptual distance."""
        with torch.inference_mode():
            parts = torch.from_numpy(resize(frames, (SIZE, SIZE))).split(at_once)
            inner = [self.network.inner(to_unit(part)) for part in parts]
        return [torch.cat(maps) for maps in zip(*inner, strict=True)]


def decode_maps(maps: Tensor) -> tuple[npt.NDArray[np.float32], ...]:
    """Maps (M, sights, 5, h, w) to the fields of a ``Reading``."""
    peaks = maps[:, :, 0].sigmoid()
    rows, sights, height, width = peaks.shape
    tops = (peaks == functional.max_pool2d(peaks, 5, stride=1, padding=2)) & (peaks > THRESHOLD)
    counts = tops.flatten(2).sum(-1)
    best = peaks.flatten(2).argmax(-1)
    strength = peaks.flatten(2).amax(-1)
    y, x = best // width, best % width
    around = torch.arange(-1, 2)
    ys = (y[..., None, None] + around[:, None]).clamp(0, height - 1).expand(-1, -1, 3, 3)
    xs = (x[..., None, None] + around[None, :]).clamp(0, width - 1).expand(-1, -1, 3, 3)
    i, j = torch.arange(rows)[:, None, None, None], torch.arange(sights)[None, :, None, None]
    near = maps[i, j, :, ys, xs]  # (M, sights, 3, 3, 5)
    weight = near[..., 0].sigmoid()
    weight = weight / weight.sum((-1, -2), keepdim=True)
    cells = CELL * (torch.stack([xs, ys], -1) + 0.5)
    place = ((cells + near[..., 1:3]) * weight[..., None]).sum((2, 3))
    place[strength <= THRESHOLD] = torch.nan
    tall = (near[..., 3] * weight).sum((2, 3)) / _DECIMETRES
    held = (near[..., 4].sigmoid() * weight).sum((2, 3))
    return place.numpy(), tall.numpy(), held.numpy(), counts.numpy()


def probe_loss(maps: Tensor, labels: Tensor) -> Tensor:
    """Loss of maps (B, sights, 5, h, w) against labels (B, sights, instances, labels).

    Peaks by the quality focal loss (Li et al., 2020); the rest by smooth L1, and cross entropy for ``held``,
    where the taught peak is above 0.3. Things of which only a few pixels show may be called either way.
    """
    centres = CELL * (torch.arange(maps.shape[-1]) + 0.5)
    seen = labels[..., Label.PIXELS] >= 1  # NaN is not
    plain = (labels[..., Label.PIXELS] >= PLAIN)[..., None, None]
    middle = labels[..., [Label.SEEN_X, Label.SEEN_Y]].nan_to_num(-1e3)
    along = (-(middle[..., None] - centres).square() / (2 * SPREAD**2)).exp()  # (B,S,instances,2,w)
    bumps = along[..., 1, :, None] * along[..., 0, None, :] * seen[..., None, None]
    target, owner = (bumps * plain).max(2)
    unsure = (bumps * ~plain).amax(2) > 0.1
    logits = maps[:, :, 0]
    cross = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    focus = (logits.sigmoid() - target).square() * ~unsure
    loss = (cross * focus).sum() / (seen[..., None, None] & plain).sum()
    batch, sight, y, x = torch.nonzero(target > 0.3, as_tuple=True)
    weight = target[batch, sight, y, x]
    own = labels[batch, sight, owner[batch, sight, y, x]]
    found = maps[batch, sight, :, y, x]
    way = own[:, [Label.X, Label.Y]] - torch.stack([centres[x], centres[y]], dim=-1)
    error = functional.smooth_l1_loss(found[:, 1:3], way, reduction="none", beta=0.5).sum(-1)
    tall = (found[:, 3] - _DECIMETRES * own[:, Label.HEIGHT]).abs()
    grip = functional.binary_cross_entropy_with_logits(found[:, 4], own[:, Label.HELD], reduction="none")
    return loss + ((0.3 * error + 2 * tall + 0.3 * grip) * weight).sum() / weight.sum()


def worse(frames: Tensor, generator: torch.Generator) -> Tensor:
    """Frames (M,3,H,W), half of them blurred, all a little noisy, brighter or darker."""
    count = len(frames)
    kernel = torch.tensor([0.25, 0.5, 0.25])
    kernel = (kernel[:, None] * kernel).expand(3, 1, 3, 3)
    blurred = functional.conv2d(functional.pad(frames, (1, 1, 1, 1), mode="replicate"), kernel, groups=3)
    share = torch.rand(count, 1, 1, 1, generator=generator).mul(2).sub(1).clamp(min=0)
    frames = torch.lerp(frames, blurred, share)
    light = 1 + 0.05 * torch.randn(count, 3, 1, 1, generator=generator)
    noise = torch.rand(count, 1, 1, 1, generator=generator) * 0.05
    return frames * light + noise * torch.randn(frames.shape, generator=generator)


def own_error(probe: Probe, truth: LabelledFrames) -> dict[str, dict[str, float]]:
    """How far the probe is off on labelled frames, for each sight and, as ``"summary"``, over all.

    Returns:
        For each sight: ``median_px`` and ``p90_px`` of where it is found, rates of ``missed`` (it shows in at
        least 6 pixels), ``invented`` (not one pixel shows it) and ``doubled``, mean errors ``height_mm`` and
        ``held``. Over all also: of things pasted a second time into frames the share that is seen as two,
        and of things covered with table the share that is seen as gone.
    """
    reading = probe.read(truth.frames)
    table: dict[str, dict[str, float]] = {}
    every = []
    for sight, name in enumerate(SIGHTS):
        label = truth.labels[:, sight]
        shown = label[:, Label.PIXELS] >= PLAIN
        absent = ~(label[:, Label.PIXELS] > 0)
        found = reading.count[:, sight] > 0
        way = np.hypot(*(reading.place[:, sight] - label[:, [Label.X, Label.Y]]).T)[shown & found]
        tall = np.abs(reading.height[:, sight] - label[:, Label.HEIGHT])[shown & found]
        held = np.abs(reading.held[:, sight] - label[:, Label.HELD])[shown & found]
        table[name] = {
            "frames": int(shown.sum()),
            "median_px": _quantile(way, 0.5),
            "p90_px": _quantile(way, 0.9),
            "missed": _mean(~found[shown]),
            "invented": _mean(found[absent]),
            "doubled": _mean(reading.count[shown, sight] > 1),
            "height_mm": 1000 * _mean(tall),
            "held": _mean(held),
        }
        if sight:
            every.append(way)
    things = [table[name] for name in SIGHTS[1:]]
    doubled, covered = _made_up(probe, truth)
    table["summary"] = {
        "gripper_px": table["gripper"]["median_px"],
        "object_px": _quantile(np.concatenate(every), 0.5),
        **{key: _mean([part[key] for part in things]) for key in ("missed", "invented", "doubled")},
        "pasted_twice_seen": doubled,
        "covered_seen_gone": covered,
    }
    return table


def _made_up(probe: Probe, truth: LabelledFrames) -> tuple[float, float]:
    """Of things that are pasted a second time, the share seen as two; of covered ones, as gone."""
    chosen = np.arange(0, len(truth), max(1, len(truth) // 300))
    frames, labels = draw_batch(truth, chosen, np.random.default_rng(0))
    count = probe.read(frames).count[:, 1:]
    there = (~np.isnan(labels[..., Label.X])).sum(-1)[:, 1:]
    before = ~np.isnan(truth.labels[chosen][..., Label.X])[:, 1:]
    return _mean(count[there == 2] == 2), _mean(count[before & (there == 0)] == 0)


def print_error(table: dict[str, dict[str, float]]) -> None:
    """Print what ``own_error`` gives."""
    columns = ("frames", "median_px", "p90_px", "missed", "invented", "doubled", "height_mm", "held")
    printed = Table("sight", *(column.replace("_", " ") for column in columns))
    printed.title = "the probe's own error on frames of the twin"
    for name in SIGHTS:
        values = [table[name][column] for column in columns]
        printed.add_row(name, *(f"{value:.4g}" for value in values))
    Console(width=110).print(printed)
    Console().print({name: round(value, 4) for name, value in table["summary"].items()})


def _mean(values: npt.ArrayLike) -> float:
    return float(np.mean(values)) if np.size(values) else float("nan")


def _quantile(values: npt.NDArray[np.float32], share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("nan")


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.command("train")
def train_command(
    clips: Annotated[Path, typer.Argument(help="Folder of clips from `worldgym collect`, 64x64.")],
    run: Annotated[Path, typer.Argument(help="Folder of the run; one that exists is continued.")],
    episodes: Annotated[int, typer.Option(help="Clips that are read, evenly spread.", min=20)] = 300,
    steps: Annotated[int, typer.Option(help="Optimizer steps.", min=1)] = 1600,
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Train the probe and write ``probe.safetensors`` into the run."""
    folder = ClipFolder(clips)
    chosen = np.linspace(0, len(folder) - 1, min(episodes, len(folder))).astype(int).tolist()
    kept = held_out(len(chosen), 0.03)
    rest = read_frames(folder, [n for i, n in enumerate(chosen) if i not in kept])
    held = read_frames(folder, [n for i, n in enumerate(chosen) if i in kept], per_clip=12)
    torch.manual_seed(seed)
    network = ProbeNetwork().to(memory_format=torch.channels_last)
    config = LoopConfig(
        steps=steps,
        batch_size=32,
        learning_rate=4e-3,
        warm_up=min(100, steps // 5),
        seed=seed,
        ema=0.99,
        device="cpu",
        precision="float32",
        compile=False,
        validate_every=200,
        save_every=100,
        progress=True,
    )
    sampler = batch_sampler(len(rest), config)

    def loss(network: nn.Module, draw: Draw, device: torch.device) -> Tensor:
        rng = np.random.default_rng([draw.seed, draw.step])
        frames, labels = draw_batch(rest, batch_indices(sampler, draw), rng)
        pixels = worse(to_unit(torch.from_numpy(frames)), draw.generator())
        return probe_loss(network(pixels), torch.from_numpy(labels))

    def validate(network: nn.Module, step: int, folder: Path) -> dict[str, float]:
        assert isinstance(network, ProbeNetwork)
        return own_error(Probe(network), held)["summary"]

    description = {"clips": str(clips), "episodes": len(chosen)}
    trained = train(Run(network, loss, validate, description), config, run)
    assert isinstance(trained, ProbeNetwork)
    Probe(trained).save(run / WEIGHTS.name)
    print_error(own_error(Probe(trained), held))


@app.command("check")
def check_command(
    clips: Annotated[Path, typer.Argument(help="Folder of clips that the probe was not trained on.")],
    weights: Annotated[Path, typer.Option(help="Weights of the probe.")] = WEIGHTS,
    episodes: Annotated[int, typer.Option(help="Clips that are read, evenly spread.", min=1)] = 100,
) -> None:
    """Print the probe's own error on frames of the twin."""
    folder = ClipFolder(clips)
    chosen = np.linspace(0, len(folder) - 1, min(episodes, len(folder))).astype(int).tolist()
    print_error(own_error(Probe.load(weights), read_frames(folder, chosen)))


if __name__ == "__main__":
    app()
