"""The layout of the package: layers, lazy imports, exported names, examples."""

import ast
import doctest
import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import worldgym
import worldgym.wrappers

ROOT = Path(__file__).parents[1]
LAYERS = [
    {"errors", "actions", "action_specs", "video", "tasks", "episode", "fingerprint"},
    {"models", "data"},
    {"judges", "policies"},
    {"envs", "wrappers"},
    {"registration", "evaluation"},
    {"training", "cli", "cli_evaluate", "cli_fields", "cli_tables"},
]
FOLDERS = {"worldgym": "worldgym", "envs": "worldgym.envs", "wrappers": "worldgym.wrappers"}
HEAVY = {"torch", "mujoco", "diffusers", "transformers", "openai", "stable_baselines3", "imageio_ffmpeg"}
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules():
    """Dotted names and files of all modules; installed packages cannot be walked, files can."""
    for folder, package in FOLDERS.items():
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = file.relative_to(ROOT / folder).with_suffix("").parts
            yield ".".join([package, *(part for part in parts if part != "__init__")]), file


MODULES = dict(modules())
WITH_EXAMPLES = [name for name, file in MODULES.items() if ">>> " in file.read_text()]


def imported(file):
    """Every module of this package that a file imports, at the top or inside functions."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} has a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            home = worldgym._HOMES.get(name.removeprefix("worldgym."), name)
            if home.startswith("worldgym.") and home != "worldgym.__version__":
                yield home


def area(name):
    return name.split(".")[1]


@pytest.mark.parametrize("name", [name for name in MODULES if name != "worldgym" and area(name) != "weights"])
def test_nothing_imports_upward(name):
    for target in imported(MODULES[name]):
        assert LEVEL[area(target)] <= LEVEL[area(name)], f"{name} imports {target} from a higher layer"


def test_evaluation_reaches_worlds_only_through_their_ids():
    for name, file in MODULES.items():
        if name.startswith("worldgym.evaluation"):
            assert not {area(target) for target in imported(file)} & {"envs", "models", "registration"}


@pytest.mark.parametrize("module", ["worldgym", *sorted(f"worldgym.{name}" for name in LAYERS[0])])
def test_light_modules_load_nothing_heavy(module):
    script = f"import sys, {module}; print(sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("package", [worldgym, worldgym.wrappers], ids=lambda package: package.__name__)
def test_exported_names_are_exact_sorted_and_documented(package):
    lazy = set(package._HOMES)
    assert sorted(package.__all__) == sorted(lazy | ({"__version__"} if package is worldgym else set()))
    for name in lazy:
        assert getattr(package, name).__doc__
        assert getattr(importlib.import_module(package._HOMES[name]), name) is getattr(package, name)
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


@pytest.mark.parametrize("folder", ["envs", "wrappers"])
def test_a_mapped_folder_refuses_a_second_name(folder, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.delitem(sys.modules, folder, raising=False)
    with pytest.raises(ImportError, match=rf"worldgym\.{folder}"):
        importlib.import_module(folder)


def test_the_version_is_the_projects():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert worldgym.__version__ == project["version"]


def test_every_package_is_listed_for_installation():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    assert {name for name, file in MODULES.items() if file.name == "__init__.py"} <= listed


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
