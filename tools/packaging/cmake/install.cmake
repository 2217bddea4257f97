# SPDX-License-Identifier: MIT
# The same files as `meson install` puts there. Paths inside of them are relative, so the tree can be moved.
include(GNUInstallDirs)
set(LOCKSTEP_CMAKE_DIR "${CMAKE_INSTALL_DATADIR}/cmake/lockstep" CACHE STRING "Where lockstepConfig.cmake goes")

# relative(RESULT FROM TO): the way between two folders, each absolute or below the prefix.
function(relative result from to)
  cmake_path(ABSOLUTE_PATH from BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" NORMALIZE)
  cmake_path(ABSOLUTE_PATH to BASE_DIRECTORY "${CMAKE_INSTALL_PREFIX}" NORMALIZE)
  cmake_path(RELATIVE_PATH to BASE_DIRECTORY "${from}")
  set("${result}" "${to}" PARENT_SCOPE)
endfunction()

# install_pkgconfig(NAME DESCRIPTION REQUIRES FLAGS)
function(install_pkgconfig name description requires flags)
  set(folder "${CMAKE_INSTALL_DATADIR}/pkgconfig")
  relative(prefix "${folder}" ".")
  relative(include_dir "." "${CMAKE_INSTALL_INCLUDEDIR}")
  file(
    CONFIGURE
    OUTPUT "${name}.pc"
    @ONLY
    CONTENT [[
prefix=${pcfiledir}/@prefix@
includedir=${prefix}/@include_dir@

Name: @name@
Description: @description@
Version: @PROJECT_VERSION@
Requires: @requires@
Cflags: @flags@
]]
  )
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${name}.pc" DESTINATION "${folder}")
endfunction()

relative(LOCKSTEP_INCLUDE_DIR "${LOCKSTEP_CMAKE_DIR}" "${CMAKE_INSTALL_INCLUDEDIR}")
set(LOCKSTEP_VERSION "${PROJECT_VERSION}")
foreach(file lockstepConfig.cmake lockstepConfigVersion.cmake)
  configure_file("${CMAKE_CURRENT_LIST_DIR}/${file}.in" "${file}" @ONLY)
  install(FILES "${CMAKE_CURRENT_BINARY_DIR}/${file}" DESTINATION "${LOCKSTEP_CMAKE_DIR}")
endforeach()

install(DIRECTORY include/lockstep DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install_pkgconfig(
  lockstep "Makes several optimizer replicas train as one" "eigen3 >= 3.4" [[-I${includedir} -pthread]]
)
install_pkgconfig(lockstep-checkpoint "checkpoint files of lockstep" "lockstep, nlohmann_json" "")
install_pkgconfig(lockstep-xtensor "xtensor arrays as variables of lockstep" "lockstep, xtensor" "")
