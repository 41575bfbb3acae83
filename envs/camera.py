"""Pictures of a scene, and what is where in them.

What is here:
    * ``Renderer``: frames of any scene at one size, and which pixels show which object.

Where points of the world are in the picture says ``scene.project``.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from worldgym.envs.physics import Physics
from worldgym.envs.scene import mujoco

Vector = npt.NDArray[np.float64]
CAMERA = "shoulder"
_MOST_GEOMS = 400
_DRAWING = threading.Lock()
"""Held while a context is used. Mesa's software driver looks into the other contexts of the process, which
crashes it about once in a million frames if they are being drawn in at that moment."""


class Renderer:
    """Draws scenes. It belongs to the thread that first draws with it.

    One OpenGL context serves all scenes: they hold primitives only and the same textures.

    Args:
        height: Of frames, pixels.
        width: Of frames, pixels.
    """

    def __init__(self, height: int, width: int) -> None:
        self.height = height
        self.width = width
        self._gl: Any = None
        self._contexts: dict[int, Any] = {}
        self._view = mujoco.MjvOption()
        self._view.geomgroup[4] = 0
        self._view.sitegroup[:] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._area = mujoco.MjrRect(0, 0, width, height)
        self._geoms: Any = None

    def frame(self, physics: Physics) -> npt.NDArray[np.uint8]:
        """The picture, uint8 (H, W, 3), a fresh array."""
        with _DRAWING:
            return self._draw(physics, samples=4)

    def object_pixels(self, physics: Physics) -> dict[str, npt.NDArray[np.bool_]]:
        """Which pixels show each object, bool (H, W) by name."""
        with _DRAWING:
            labels = self._draw(physics, samples=0).astype(np.int64)
        numbers = labels[..., 0] + labels[..., 1] * 256 + labels[..., 2] * 65536 - 1
        geoms = np.full(_MOST_GEOMS + 1, -1)
        for index in range(self._geoms.ngeom):
            geom = self._geoms.geoms[index]
            if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM and geom.segid >= 0:
                geoms[geom.segid] = geom.objid
        found = geoms[numbers]
        bodies = np.where(found >= 0, physics.model.geom_bodyid[found], -1)
        return {name: bodies == physics.model.body(name).id for name in physics.kinds}

    def close(self) -> None:
        """Give the OpenGL context back; call it in the thread that drew."""
        with _DRAWING:
            for context in self._contexts.values():
                context.free()
            self._contexts.clear()
            if self._gl is not None:
                self._gl.free()
                self._gl = None

    def _draw(self, physics: Physics, *, samples: int) -> npt.NDArray[np.uint8]:
        """One pass, with that many samples a pixel; none draws the numbers of geoms as colours."""
        model, data = physics.model, physics.data
        context = self._context(model, samples)
        self._geoms.flags[mujoco.mjtRndFlag.mjRND_SEGMENT] = samples == 0
        self._geoms.flags[mujoco.mjtRndFlag.mjRND_IDCOLOR] = samples == 0
        self._camera.fixedcamid = model.camera(CAMERA).id
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(model, data, self._view, None, self._camera, everything, self._geoms)
        mujoco.mjr_render(self._area, self._geoms, context)
        frame = np.empty((self.height, self.width, 3), np.uint8)
        mujoco.mjr_readPixels(frame, None, self._area, context)
        return frame[::-1].copy()

    def _context(self, model: Any, samples: int) -> Any:
        if self._gl is None:
            self._gl = _new_gl(self.width, self.height)
            self._gl.make_current()
            self._geoms = mujoco.MjvScene(model, maxgeom=_MOST_GEOMS)
            self._geoms.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
            self._geoms.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        self._gl.make_current()
        if samples not in self._contexts:
            model.vis.global_.offwidth, model.vis.global_.offheight = self.width, self.height
            model.vis.quality.offsamples = samples
            context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
            self._contexts[samples] = context
        context = self._contexts[samples]
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, context)
        return context


def _new_gl(width: int, height: int) -> Any:
    """An OpenGL context; on Linux, unless ``MUJOCO_GL`` says otherwise, one that needs no display."""
    os.environ.setdefault("LP_NUM_THREADS", "1")  # software rendering: small frames gain nothing from threads
    if sys.platform.startswith("linux") and os.environ.get("MUJOCO_GL", "egl") == "egl":
        # mujoco.GLContext would be what the variable said when mujoco was first imported, maybe not by us
        return importlib.import_module("mujoco.egl").GLContext(width, height)
    return mujoco.GLContext(width, height)
