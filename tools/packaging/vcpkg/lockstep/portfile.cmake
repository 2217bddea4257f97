# SPDX-License-Identifier: MIT
# An overlay port that takes the source tree it stands in. In a copy outside of that tree, set SOURCE_PATH by
# vcpkg_from_git or its like instead.
cmake_path(SET SOURCE_PATH NORMALIZE "${CMAKE_CURRENT_LIST_DIR}/../../../..")

set(VCPKG_BUILD_TYPE release) # headers only

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DLOCKSTEP_CMAKE_DIR=share/lockstep
)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup()
foreach(feature IN ITEMS checkpoint xtensor)
  if(NOT feature IN_LIST FEATURES)
    file(REMOVE "${CURRENT_PACKAGES_DIR}/share/pkgconfig/lockstep-${feature}.pc")
  endif()
endforeach()
vcpkg_fixup_pkgconfig()
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
