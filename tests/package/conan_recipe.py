# SPDX-License-Identifier: MIT
"""Runs the methods of the Conan recipe in Conan's order, with a stand-in for Conan, which is not in Debian:

    conan_recipe.py RECIPE_FOLDER WORK_FOLDER

Leaves the package in WORK_FOLDER/package and prints its version.
"""
import fnmatch
import importlib.util
import pathlib
import shutil
import sys
import types


class ConanFile:
    def __init__(self):
        self.options = types.SimpleNamespace(**getattr(self, "default_options", {}))
        self.settings = types.SimpleNamespace(os="Linux")
        self.cpp_info = types.SimpleNamespace()
        self.cleared = False
        self.info = types.SimpleNamespace(clear=lambda: setattr(self, "cleared", True))
        self.required = []
        self.standard = None

    def requires(self, reference, **traits):
        self.required.append((reference.split("/")[0], traits))


def copy(conanfile, pattern, src, dst):
    src, dst = pathlib.Path(src), pathlib.Path(dst)
    for file in src.rglob("*"):
        name = file.relative_to(src).as_posix()
        if file.is_file() and fnmatch.fnmatch(name, pattern):
            (dst / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, dst / name)


def stand_in(name, **content):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


def load_recipe(path):
    spec = importlib.util.spec_from_file_location("conanfile", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


stand_in("conan", ConanFile=ConanFile)
stand_in("conan.tools")
stand_in("conan.tools.build", check_min_cppstd=lambda conanfile, standard: setattr(conanfile, "standard", standard), can_run=None)
stand_in("conan.tools.cmake", CMake=None, cmake_layout=None)
stand_in("conan.tools.files", copy=copy, load=lambda conanfile, path: pathlib.Path(path).read_text(encoding="utf-8"))

folder, work = (pathlib.Path(argument) for argument in sys.argv[1:])
sys.dont_write_bytecode = True
load_recipe(folder / "test_package" / "conanfile.py")  # at least parses
Recipe = load_recipe(folder / "conanfile.py").LockstepConan

# `conan export`: the recipe still stands in its tree.
recipe = Recipe()
recipe.recipe_folder = str(folder)
recipe.export_sources_folder = str(work / "sources")
recipe.set_version()
recipe.export_sources()

# From here on Conan has only what was exported.
built = Recipe()
built.version = recipe.version
built.recipe_folder = str(work / "export")
built.source_folder = str(work / "sources")
built.package_folder = str(work / "package")
built.requirements()
built.validate()
built.package_id()
built.package()
built.package_info()
assert built.required == [("eigen", {"transitive_headers": True})], built.required
assert built.standard == 20 and built.cleared
assert built.cpp_info.libdirs == [] and built.cpp_info.bindirs == []

for option, library in ("with_checkpoint", "nlohmann_json"), ("with_xtensor", "xtensor"):
    optional = Recipe()
    setattr(optional.options, option, True)
    optional.requirements()
    assert [name for name, _ in optional.required] == ["eigen", library], optional.required

print(recipe.version)
