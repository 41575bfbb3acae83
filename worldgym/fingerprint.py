"""``content_hash``: what files hold, as one short text that differs when they do."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path


def content_hash(path: str | Path) -> str:
    """SHA-256 of a file, or of the names and contents of all files in a folder, in hex.

    Args:
        path: The file or folder; where it lies does not matter.

    Raises:
        OSError: If a file cannot be read.
    """
    path, total = Path(path), sha256()
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        total.update(file.relative_to(path).as_posix().encode() + b"\0")
        with open(file, "rb") as content:
            while block := content.read(1 << 20):
                total.update(block)
    return total.hexdigest()
