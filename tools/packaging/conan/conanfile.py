# SPDX-License-Identifier: MIT
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class LockstepConan(ConanFile):
    name = "lockstep"
    description = "Makes several optimizer replicas train as one"
    license = "MIT"
    topics = ("optimizer", "training", "header-only")
    package_type = "header-library"
    settings = "os", "arch", "compiler", "build_type"
    options = {"with_checkpoint": [True, False], "with_xtensor": [True, False]}
    default_options = {"with_checkpoint": False, "with_xtensor": False}
    no_copy_source = True

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..", "..")

    def set_version(self):
        config = load(self, os.path.join(self._root, "include", "lockstep", "config.hpp"))
        self.version = ".".join(re.findall(r"#define LOCKSTEP_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", config))

    def export_sources(self):
        copy(self, "include/*", self._root, self.export_sources_folder)
        copy(self, "LICENSE", self._root, self.export_sources_folder)

    def requirements(self):
        self.requires("eigen/3.4.0", transitive_headers=True)
        if self.options.with_checkpoint:
            self.requires("nlohmann_json/[>=3.11 <4]", transitive_headers=True)
        if self.options.with_xtensor:
            self.requires("xtensor/[>=0.24 <0.25]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 20)

    def package_id(self):
        self.info.clear()

    def package(self):
        copy(self, "*.hpp", os.path.join(self.source_folder, "include"), os.path.join(self.package_folder, "include"))
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
