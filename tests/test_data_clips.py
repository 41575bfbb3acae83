import re

import numpy as np
import pytest

from worldgym.actions import convert
from worldgym.data.clips import ClipFolder, ClipWriter
from worldgym.episode import Episode
from worldgym.errors import DataError, InvalidAction
from worldgym.video import read_video, resize, write_video


def make_episode(length: int = 5, *, seed: int = 0, size: tuple[int, int] = (32, 32), **values) -> Episode:
    rng = np.random.default_rng(seed)
    frames = resize(rng.integers(0, 255, (length, 4, 4, 3), dtype=np.uint8), size)
    actions = rng.uniform(-0.9, 0.9, (length - 1, 7)).astype(np.float32)
    actions[:, 6] = rng.choice([-1.0, 1.0], length - 1)
    return Episode(frames, actions, seed=seed, **values)


def published_clip(folder, name: str, length: int, **extra) -> None:
    write_video(folder / f"{name}.mp4", make_episode(length).frames, fps=20)
    rows = np.zeros((length, 10), np.float32)
    rows[:, 0] = np.arange(length) / 100
    np.savez(folder / f"{name}.npz", rows, **extra)


@pytest.fixture
def folder(tmp_path):
    published_clip(tmp_path, "000000001", 4)
    published_clip(tmp_path, "000000000", 6)
    return tmp_path


def test_published_clips_are_read_in_order_with_one_action_less_than_frames(folder):
    clips = ClipFolder(folder)
    assert clips.names == ["000000000", "000000001"]
    assert clips.lengths.tolist() == [6, 4]
    episode = clips[0]
    assert episode.frames.shape == (6, 32, 32, 3)
    np.testing.assert_allclose(episode.actions[:, 0], np.arange(5) / 100, atol=1e-7)
    assert episode.action_spec == "published_bridge"
    assert episode.fps == 5.0
    assert episode.trial == "000000000"
    assert episode.success is None
    assert clips.rows(0).shape == (6, 10)
    assert [len(episode) for episode in clips] == [6, 4]
    assert clips.skipped == []


def test_clips_in_folders_below_are_found_and_named_after_their_folder(tmp_path):
    for name in ("play", "tasks/lift", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
        published_clip(tmp_path / name, "000000000", 4)
    clips = ClipFolder(tmp_path)
    assert clips.names == ["play/000000000", "tasks/lift/000000000"]
    assert [len(episode) for episode in clips] == [4, 4]


def test_everything_known_of_an_episode_survives_the_files(tmp_path):
    episode = make_episode(
        6,
        seed=2**40,
        instruction="höher\nbitte",
        task="a/b",
        trial="t7",
        fps=7.5,
        success=False,
        progress=0.25,
        family="noisy expert",
        metadata={"scene": {"cube": [0.1, 2]}, "tries": 3},
    )
    ClipWriter(tmp_path, lossless=True).append(episode)
    back = ClipFolder(tmp_path)[0]
    np.testing.assert_array_equal(back.frames, episode.frames)
    np.testing.assert_allclose(back.actions, convert(episode.actions, "worldgym", "published_bridge"))
    same = ("seed", "instruction", "task", "trial", "fps", "success", "progress", "family", "metadata")
    for field in same:
        assert getattr(back, field) == getattr(episode, field), field
    assert isinstance(back.success, bool)
    assert back.action_spec == "published_bridge"


def test_unknown_truth_stays_unknown(tmp_path):
    ClipWriter(tmp_path).append(make_episode())
    back = ClipFolder(tmp_path)[0]
    assert back.success is None
    assert back.progress is None
    assert back.family is None


def test_the_published_trainer_finds_what_it_expects(tmp_path):
    writer = ClipWriter(tmp_path)
    episode = make_episode(5)
    writer.append(episode)
    with np.load(tmp_path / "000000000.npz") as arrays:
        rows = arrays["arr_0"]
    assert rows.dtype == np.float32
    assert rows.shape == (5, 10)
    assert len(read_video(tmp_path / "000000000.mp4")) == 5
    # nothing moves after the last frame, but the gripper stays as it was
    np.testing.assert_array_equal(rows[-1, :6], np.zeros(6))
    assert rows[-1, 6] == rows[-2, 6] == -episode.actions[-1, 6]


def test_actions_are_stored_in_the_convention_asked_for(tmp_path):
    episode = make_episode()
    ClipWriter(tmp_path, action_spec="worldgym").append(episode)
    back = ClipFolder(tmp_path)[0]
    assert back.action_spec == "worldgym"
    np.testing.assert_allclose(back.actions, episode.actions)


def test_an_episode_of_one_frame_has_no_action(tmp_path):
    ClipWriter(tmp_path).append(make_episode(1))
    assert ClipFolder(tmp_path)[0].actions.shape == (0, 10)


@pytest.mark.parametrize("size", [(65, 91), (36, 64)])
def test_odd_sizes_are_kept(tmp_path, size):
    ClipWriter(tmp_path).append(make_episode(3, size=size))
    assert ClipFolder(tmp_path)[0].frames.shape == (3, *size, 3)


def test_a_writer_goes_on_where_another_one_stopped(tmp_path):
    first = ClipWriter(tmp_path)
    for seed in range(2):
        first.append(make_episode(seed=seed))
    second = ClipWriter(tmp_path)
    assert len(second) == 2
    assert "000000001" in second
    assert second.append(make_episode(seed=2)).name == "000000002.npz"
    assert [episode.seed for episode in ClipFolder(tmp_path)] == [0, 1, 2]


def test_a_complete_name_is_left_as_it_is(tmp_path):
    writer = ClipWriter(tmp_path)
    writer.append(make_episode(3), name="one")
    before = (tmp_path / "one.mp4").read_bytes(), (tmp_path / "one.npz").read_bytes()
    ClipWriter(tmp_path).append(make_episode(7, seed=1), name="one")
    assert ((tmp_path / "one.mp4").read_bytes(), (tmp_path / "one.npz").read_bytes()) == before


def test_a_killed_writer_leaves_an_incomplete_clip_that_the_next_one_redoes(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("numpy.savez_compressed", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ClipWriter(tmp_path).append(make_episode(3), name="one")
    assert [file.name for file in tmp_path.iterdir()] == ["one.mp4"]
    with pytest.raises(DataError, match=r"one\.npz is missing"):
        ClipFolder(tmp_path)
    ClipWriter(tmp_path).append(make_episode(5), name="one")
    assert len(ClipFolder(tmp_path)[0]) == 5


def test_names_may_hold_dots(tmp_path):
    ClipWriter(tmp_path).append(make_episode(), name="task.trial")
    assert ClipFolder(tmp_path).names == ["task.trial"]


@pytest.mark.parametrize("name", ["", "a/b", "../a", ".hidden"])
def test_names_that_are_no_plain_file_names_are_refused(tmp_path, name):
    with pytest.raises(DataError, match="plain file name"):
        ClipWriter(tmp_path / "clips").append(make_episode(), name=name)


def test_nothing_is_written_of_an_episode_that_cannot_be_stored(tmp_path):
    episode = make_episode()
    episode.actions[2, 1] = np.nan
    with pytest.raises(InvalidAction, match=r"row 2, component 1 \(y\) is nan"):
        ClipWriter(tmp_path).append(episode)
    with pytest.raises(DataError, match="metadata must be something json can hold"):
        ClipWriter(tmp_path).append(make_episode(metadata={"x": object()}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b""), "cannot be read as an npz"),
        (lambda path: path.write_bytes(b"PK\x03\x04 truncated"), "cannot be read as an npz"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "cannot be read as an npz"),
        (lambda path: np.savez(path, np.zeros((6, 9), np.float32)), "expected actions of 10 numbers"),
        (lambda path: np.savez(path, np.zeros(10, np.float32)), r"shape \(any, 10\)"),
        (lambda path: np.savez(path, np.zeros((0, 10), np.float32)), "has no rows"),
        (lambda path: np.savez(path, np.full((6, 10), np.nan)), "row 0, component 0 .x. is nan"),
        (lambda path: np.savez(path, actions=np.zeros((6, 10))), "has no arr_0"),
        (lambda path: np.savez(path, np.array([None])), "cannot be read as an npz"),
        (lambda path: np.savez(path, np.zeros((6, 10)), seed=np.zeros(2)), "cannot be read as an npz"),
        (lambda path: np.savez(path, np.zeros((6, 10)), metadata="{"), "cannot be read as an npz"),
        (lambda path: np.savez(path, np.zeros((6, 10)), action_spec="mine"), "unknown action convention"),
    ],
)
def test_an_unusable_npz_is_left_out_and_listed_with_the_reason(folder, write, reason):
    write(folder / "000000000.npz")
    clips = ClipFolder(folder)
    assert clips.names == ["000000001"]
    (skipped,) = clips.skipped
    assert skipped.path == folder / "000000000.npz"
    assert re.search(reason, skipped.reason)


def test_an_npz_without_a_video_is_listed(folder):
    (folder / "000000001.mp4").unlink()
    assert "has no video" in ClipFolder(folder).skipped[0].reason


def test_a_length_that_disagrees_names_both_files_and_numbers(folder):
    np.savez(folder / "000000000.npz", np.zeros((5, 10), np.float32))
    clips = ClipFolder(folder)
    message = r"000000000\.mp4 has 6 frames, but .*000000000\.npz has 5 rows"
    with pytest.raises(DataError, match=message):
        clips[0]
    with pytest.raises(DataError, match=message):
        clips.content(0, 0, 2)


def test_checking_reads_every_video_and_lists_the_bad_ones(folder):
    published_clip(folder, "000000002", 3)
    np.savez(folder / "000000000.npz", np.zeros((5, 10), np.float32))
    video = folder / "000000002.mp4"
    video.write_bytes(video.read_bytes()[:-50])
    clips = ClipFolder(folder)
    assert len(clips) == 3
    left_out = clips.check()
    assert [entry.path.name for entry in left_out] == ["000000000.mp4", "000000002.mp4"]
    assert clips.skipped == left_out
    assert clips.names == ["000000001"]
    assert clips.lengths.tolist() == [4]
    assert len(clips[0]) == 4
    assert clips.check() == []


def test_folders_without_a_usable_clip_are_errors(tmp_path):
    with pytest.raises(DataError, match="is none"):
        ClipFolder(tmp_path / "nowhere")
    with pytest.raises(DataError, match="there is no clip to use in"):
        ClipFolder(tmp_path)
    for number in range(7):
        np.savez(tmp_path / f"{number}.npz", np.zeros((5, 10), np.float32))
    with pytest.raises(DataError, match=r"7 were left out: .*0\.npz has no video.*and 2 more"):
        ClipFolder(tmp_path)


def test_frames_are_read_by_range_and_never_shared(folder):
    clips = ClipFolder(folder)
    whole = clips[0].frames
    part = clips.content(0, 2, 5)
    np.testing.assert_array_equal(part, whole[2:5])
    part[:] = 0
    np.testing.assert_array_equal(clips.content(0, 2, 5), whole[2:5])


def test_real_bridge_clips_are_read(shared_data):
    for split, count in [("train", 9), ("test", 1)]:
        clips = ClipFolder(shared_data / "bridge_clips" / split)
        assert len(clips) == count
        assert clips.check() == []
        for episode in clips:
            assert episode.frames.shape[1:] == (256, 256, 3)
            assert episode.actions.shape == (len(episode) - 1, 10)


def test_real_clips_survive_being_written_again(shared_data, tmp_path):
    episode = ClipFolder(shared_data / "bridge_clips" / "test")[0]
    ClipWriter(tmp_path).append(episode)
    back = ClipFolder(tmp_path)[0]
    np.testing.assert_allclose(back.actions, episode.actions, atol=1e-6)
    assert back.frames.shape == episode.frames.shape
