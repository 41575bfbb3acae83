"""The examples of ``docs/judges.md``, as they stand there."""

import re
from pathlib import Path

import numpy as np
import pytest
from fake_chat_server import SUCCESS, FakeChatServer

pytest.importorskip("openai")

PAGE = (Path(__file__).parents[1] / "docs" / "judges.md").read_text()
DEFAULT, SERVER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_default_world_has_the_packaged_judge():
    names = {}
    exec(DEFAULT, names)
    env = names["env"]
    assert env.get_wrapper_attr("desk").judge.identity.startswith("packaged:")
    env.reset(seed=0)
    _, reward, terminated, _, _ = env.step(np.zeros(7, np.float32))
    assert (reward, terminated) == (0.0, False)
    env.close()


def test_five_lines_reward_by_asking_a_server():
    with FakeChatServer(lambda number, body: SUCCESS) as server:
        port, names = server.url.split(":")[2].removesuffix("/v1"), {}
        assert len(SERVER.strip().splitlines()) == 6, "an import of gymnasium, and five lines"
        exec(SERVER.replace("PORT", port), names)
        env = names["env"]
        rewards = [env.step(np.zeros(7, np.float32))[1] for _ in range(8)]
        env.close()
        assert rewards == [0.0] * 7 + [1.0]
        assert len(server.requests) == 1
