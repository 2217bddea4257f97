# SPDX-License-Identifier: MIT
# shellcheck shell=bash
# Functions that the scripts share; to be sourced.

# install_packages PACKAGE... installs those Debian packages that are missing.
install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian system: these must be there already: $*" >&2
    return
  fi
  local package missing=() as_root=()
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null) == *' installed' ]] || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || as_root=(sudo)
  echo "installing Debian packages: ${missing[*]}"
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

# configure BUILD_DIR MESON_OPTION... sets up a build folder, or brings an existing one up to date; shows what
# Meson says when it fails.
configure() {
  local build=$1 output
  shift
  [[ ! -f $build/build.ninja ]] || set -- --reconfigure "$@"
  output=$(meson setup "$@" "$build" 2>&1) || {
    echo "$output"
    return 1
  }
}
