# Shared by the scripts of this folder (source it): where the tree is, what must be installed, how it is built.
# A second run finds everything done and is quick. GACC_NO_INSTALL=1 forbids installing.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build="$root/build"
bin="$build/bin"
jobs=$(nproc 2>/dev/null || echo 2)

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# bare_roots [RELEASE]: the least of a Debian release (this one), from where this machine gets its packages, as
# $where/ready and, with the last commit in /src, as $where/build; they go at the end. As root.
bare_roots() {
  [ "$(id -u)" -eq 0 ] || die "debootstrap and chroot need root"
  command -v debootstrap >/dev/null || die "debootstrap is missing: install the Debian package debootstrap"
  where=$(mktemp -d)
  trap remove_roots EXIT
  local mirror release
  release=${1:-$(. /etc/os-release && printf '%s' "$VERSION_CODENAME")}
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -1)
  say "a bare root of $release"
  debootstrap --variant=minbase "$release" "$where/ready" "$mirror" >"$where/log" 2>&1 ||
    { tail -5 "$where/log" >&2; die "debootstrap failed"; }
  cp /etc/resolv.conf "$where/ready/etc/"
  cp -a "$where/ready" "$where/build"
  mkdir "$where/build/src"
  git -C "$root" archive HEAD | tar -x -C "$where/build/src"
  mount -t proc proc "$where/ready/proc"
  mount -t proc proc "$where/build/proc"
}
remove_roots() {
  local at
  for at in "$where"/*/{ccache,proc}; do
    ! mountpoint -q "$at" || umount "$at"
  done
  rm -rf --one-file-system "$where"
}
inside() {  # inside ROOT [NAME=VALUE...] COMMAND...: in an environment of its own
  env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive \
    chroot "$where/$1" env "${@:2}"
}

# Debian's names; "a|b" means that either will do, the first that the distribution has is installed.
packages=(
  g++ cmake ninja-build ccache python3
  llvm-19-dev libtomlplusplus-dev libdnnl-dev libcli11-dev libfmt-dev nlohmann-json3-dev
  zlib1g-dev libzstd-dev nettle-dev libgtest-dev "clang-format-14|clang-format"
)

is_installed() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
is_known() { [ -n "$(apt-cache show --no-all-versions "$1" 2>/dev/null)" ]; }

# first_that TEST ENTRY: the first alternative of the entry that passes the test.
first_that() {
  local name
  for name in ${2//|/ }; do
    if "$1" "$name"; then
      printf '%s\n' "$name"
      return
    fi
  done
  return 1
}

# Installs what is missing from the distribution's packages, and says what.
install_packages() {
  command -v dpkg-query >/dev/null ||
    die "this is no Debian or Ubuntu: install by hand ${packages[*]}, then use cmake --preset release"
  local missing=() chosen=() as_root=() entry
  for entry in "${packages[@]}"; do first_that is_installed "$entry" >/dev/null || missing+=("$entry"); done
  if [ ${#missing[@]} -eq 0 ]; then return 0; fi
  if [ "${GACC_NO_INSTALL:-0}" = 1 ]; then
    die "missing packages: ${missing[*]} (GACC_NO_INSTALL=1 forbids installing them)"
  fi
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "missing packages: ${missing[*]}; installing them needs root or sudo"
    as_root=(sudo)
  fi
  say "installing: ${missing[*]}"
  local apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update -q >&2 </dev/null || die "apt-get update failed; missing packages: ${missing[*]}"
  # Where apt knows none, the first name, so that apt-get says so.
  for entry in "${missing[@]}"; do chosen+=("$(first_that is_known "$entry" || printf '%s' "${entry%%|*}")"); done
  "${apt[@]}" install -q -y --no-install-recommends "${chosen[@]}" >&2 </dev/null ||
    die "apt-get could not install: ${chosen[*]}"
}

# Configures (once) and builds the release preset; the binaries are in build/bin. Arguments: ninja targets. With
# tests=OFF a new build folder has no tests; without it, a folder that has none gets them.
build_gacc() {
  local cache="$build/CMakeCache.txt"
  if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then
    say "build/ belongs to another folder: configuring again"
    rm -rf "$cache" "$build/CMakeFiles"
  fi
  if [ ! -f "$build/build.ninja" ] || [ ! -f "$cache" ] ||
    { [ "${tests:-ON}" = ON ] && grep -qx 'GACC_TESTS:BOOL=OFF' "$cache"; }; then
    say "configuring"
    (cd "$root" && cmake --preset release -DGACC_TESTS="${tests:-ON}" >&2) || die "cmake --preset release failed"
  fi
  say "building with $jobs jobs"
  cmake --build "$build" -j "$jobs" ${1:+--target "$@"} >&2 || die "the build failed"
}

# Where MNIST is: GACC_DATA/mnist, else ../shared/data/mnist; prints nothing when it is in neither.
find_mnist() {
  local folder
  for folder in ${GACC_DATA:+"$GACC_DATA/mnist"} "$root/../shared/data/mnist"; do
    if [ -e "$folder/train-images-idx3-ubyte" ] || [ -e "$folder/train-images-idx3-ubyte.gz" ]; then
      (cd "$folder" && pwd)
      return
    fi
  done
}
