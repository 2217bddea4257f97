# SPDX-License-Identifier: MIT
# Stands in for vcpkg, which is not in Debian: makes the calls of the port with the real cmake, into a prefix.
#
#   cmake -DPORT_DIR=DIR -DCURRENT_PACKAGES_DIR=PREFIX -DBUILD_DIR=DIR [-DFEATURES=LIST] -P vcpkg.cmake
#
# vcpkg_cmake_config_fixup and vcpkg_fixup_pkgconfig only check here that there is something to mend: both files are
# relative already.
cmake_minimum_required(VERSION 3.21)
set(PORT lockstep)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "vcpkg_cmake_configure: ${arg_UNPARSED_ARGUMENTS}")
  endif()
  run(
    "${CMAKE_COMMAND}" -S "${arg_SOURCE_PATH}" -B "${BUILD_DIR}" -DCMAKE_BUILD_TYPE=Release
    "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" ${arg_OPTIONS}
  )
endfunction()

function(vcpkg_cmake_install)
  run("${CMAKE_COMMAND}" --build "${BUILD_DIR}" --target install)
endfunction()

function(vcpkg_cmake_config_fixup)
  if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/share/${PORT}/${PORT}Config.cmake")
    message(FATAL_ERROR "no ${PORT}Config.cmake in share/${PORT}")
  endif()
endfunction()

function(vcpkg_fixup_pkgconfig)
  file(GLOB files "${CURRENT_PACKAGES_DIR}/share/pkgconfig/*.pc")
  foreach(file IN LISTS files)
    file(READ "${file}" text)
    if(text MATCHES "xtensor" AND NOT "xtensor" IN_LIST FEATURES)
      message(FATAL_ERROR "${file} needs the feature xtensor")
    endif()
    if(text MATCHES "nlohmann_json" AND NOT "checkpoint" IN_LIST FEATURES)
      message(FATAL_ERROR "${file} needs the feature checkpoint")
    endif()
  endforeach()
endfunction()

function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(INSTALL ${arg_FILE_LIST} DESTINATION "${CURRENT_PACKAGES_DIR}/share/${PORT}" RENAME copyright)
endfunction()

include("${PORT_DIR}/portfile.cmake")
