#!/bin/sh
# Installs, by name, what this repository needs and this machine lacks: a C compiler with OpenMP, make, pkg-config, cJSON and
# cmocka from the system's packages, Python 3 that can make virtual environments, and in .venv what scripts/requirements.txt
# lists. Asks nothing; run again, it does nothing that is done. Needs root, or sudo, only when a system package is missing.
#
#     ./scripts/setup.sh
#     ./scripts/setup.sh --hf    what `make test-hf` needs too: in .venv-hf what scripts/requirements-hf.txt lists, over the system's PyTorch
#
# Environment: CC, the compiler that must work (default cc); PYTHON, the Python that .venv is to be made with.
# Exit status: 0 when everything is there, 1 when something could not be installed, 2 for bad usage.
set -eu

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

hf=
case ${1-} in
'') ;;
--hf) hf=yes ;;
-h | --help)
    sed -n '2,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0"
    exit 0
    ;;
*)
    printf 'setup: unknown argument: %s (there are --hf and --help)\n' "$1" >&2
    exit 2
    ;;
esac

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd -P)
venv=$root/.venv
requirements=$root/scripts/requirements.txt
installed=$venv/installed-requirements.txt # a copy of the requirements, made when pip was done with them
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# ----------------------------------------------------------------------------------------------------------------------
# What is there

# A gcc without the C library's headers, or a clang without OpenMP's library, is found by building a program only.
compiler_works() {
    cat >"$work/probe.c" <<'PROBE'
#include <math.h>
#include <omp.h>
#include <stdio.h>
int main(int argc, char **argv) {
    (void)argv;
    printf("%d %g\n", omp_get_max_threads(), sqrt(argc));
    return 0;
}
PROBE
    # CC may hold options too.
    # shellcheck disable=SC2086
    ${CC:-cc} -fopenmp "$work/probe.c" -o "$work/probe" -lm >"$work/compiler.log" 2>&1
}

library_there() { command -v pkg-config >/dev/null 2>&1 && pkg-config --exists "$1"; }

# The program itself decides: Debian's python3 has venv in a package of its own, and a shim of pyenv may lead nowhere.
makes_venvs() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 9))' >/dev/null 2>&1; }

find_python() {
    for python in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3 /usr/local/bin/python3 /opt/homebrew/bin/python3 \
        python3.14 python3.13 python3.12 python3.11 python3.10 python3.9; do
        if makes_venvs "$python"; then
            return 0
        fi
    done
    return 1
}

venv_complete() {
    cmp -s "$requirements" "$installed" &&
        "$venv/bin/python" -c 'import matplotlib.backends.backend_agg, matplotlib.backends.backend_svg' >/dev/null 2>&1
}

# Sets missing to the words of package_names whose thing is not there.
find_missing() {
    missing=
    compiler_works || missing="$missing compiler"
    command -v make >/dev/null 2>&1 || missing="$missing make"
    command -v pkg-config >/dev/null 2>&1 || missing="$missing pkg-config"
    library_there libcjson || missing="$missing cjson"
    library_there cmocka || missing="$missing cmocka"
    [ "$venv_state" = complete ] || find_python || missing="$missing python"
}

# ----------------------------------------------------------------------------------------------------------------------
# System packages

# package_names MANAGER THING...: the packages in which a package manager has these things.
package_names() {
    manager=$1
    shift
    for thing; do
        case $manager-$thing in
        apt-compiler) case ${CC:-cc} in *clang*) echo clang libomp-dev ;; *) echo gcc libc6-dev ;; esac ;;
        dnf-compiler | pacman-compiler | none-compiler) echo gcc ;;
        brew-compiler) echo gcc ;; # Apple's own clang comes without OpenMP
        apt-cjson) echo libcjson-dev ;;
        dnf-cjson) echo cjson-devel ;;
        none-cjson) echo cJSON ;;
        apt-cmocka) echo libcmocka-dev ;;
        dnf-cmocka) echo libcmocka-devel ;;
        dnf-pkg-config | pacman-pkg-config) echo pkgconf ;;
        apt-python) echo python3 python3-venv ;;
        pacman-python | brew-python) echo python ;;
        dnf-python) echo python3 ;;
        none-python) echo 'Python 3.9 or later, with its venv module' ;;
        *) echo "$thing" ;;
        esac
    done | tr '\n' ' ' | sed 's/ $//'
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif [ -t 0 ]; then
        sudo "$@" # on a terminal sudo may want a password
    else
        sudo -n "$@"
    fi
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=a apt-get -qq -o DPkg::Lock::Timeout=300 "$@" </dev/null
}

install_with_apt() {
    # shellcheck disable=SC2046,SC2086
    set -- $(package_names apt $missing)
    by_hand="apt-get install $*"
    if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null 2>&1; then
        fail "missing:$missing. There is no sudo here; as root run: $by_hand"
    fi
    say "installing $*"
    apt_get update || say "apt-get update failed; trying with the package lists that are there"
    apt_get install -y --no-install-recommends "$@" || fail "could not install $*. By hand: $by_hand"
}

explain_elsewhere() {
    # shellcheck disable=SC2086
    for manager in dnf pacman brew; do
        command -v "$manager" >/dev/null 2>&1 || continue
        packages=$(package_names "$manager" $missing)
        case $manager in
        dnf) command="sudo dnf install $packages" ;;
        pacman) command="sudo pacman -S --needed $packages" ;;
        brew) command="brew install $packages" ;;
        esac
        case "$manager $missing" in
        brew*compiler*) command="$command, then build with CC=gcc-N (N: its version)" ;;
        esac
        fail "missing:$missing. This script installs by itself only where there is apt-get. Here run: $command"
    done
    # shellcheck disable=SC2086
    fail "missing:$missing. No package manager known here (apt-get, dnf, pacman, brew); install: $(package_names none $missing)"
}

# What still is not there once its packages are: say why, as far as that is known.
explain_still_missing() {
    case $missing in
    *compiler*)
        sed 's/^/    /' "$work/compiler.log" >&2
        fail "${CC:-cc} cannot build a program with OpenMP; try CC=gcc"
        ;;
    esac
    fail "installed, yet not found:$missing. Is another pkg-config or python3 first in PATH?"
}

# ----------------------------------------------------------------------------------------------------------------------
# The virtual environment

# make_hf_venv makes .venv-hf, which sees the system's PyTorch: /usr/bin/python3 is the one that Debian's python3-torch is for.
hf_venv=$root/.venv-hf
hf_requirements=$root/scripts/requirements-hf.txt
hf_python=${PYTHON:-/usr/bin/python3}

hf_complete() {
    cmp -s "$hf_requirements" "$hf_venv/installed-requirements.txt" &&
        "$hf_venv/bin/python" -c 'import torch, transformers, safetensors' >/dev/null 2>&1
}

sees_torch() { "$hf_python" -c 'import torch, venv, ensurepip' >/dev/null 2>&1; }

make_hf_venv() {
    if ! sees_torch && command -v apt-get >/dev/null 2>&1; then
        say "installing python3-torch python3-venv"
        apt_get update || say "apt-get update failed; trying with the package lists that are there"
        apt_get install -y --no-install-recommends python3-torch python3-venv || fail "could not install python3-torch python3-venv"
    fi
    sees_torch || fail "$hf_python has no PyTorch or cannot make a virtual environment; name one that can: PYTHON=... $0 --hf"
    say "making $hf_venv"
    rm -rf "$hf_venv"
    "$hf_python" -m venv --system-site-packages "$hf_venv" || fail "$hf_python -m venv $hf_venv failed"
    "$hf_venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r "$hf_requirements" ||
        fail "pip could not install $hf_requirements (is there a network?). Only make test-hf needs it"
    cp "$hf_requirements" "$hf_venv/installed-requirements.txt"
    own_venv "$hf_venv"
    hf_complete || fail "transformers is installed in $hf_venv, but this fails: $hf_venv/bin/python -c 'import torch, transformers'"
}

new_venv() {
    find_python || fail "no Python 3.9 or later that can make a virtual environment"
    if [ -e "$venv" ] || [ -L "$venv" ]; then
        say "making $venv anew: the one there is broken"
        rm -rf "$venv"
    else
        say "making $venv"
    fi
    "$python" -m venv "$venv" || fail "$python -m venv $venv failed"
    own_venv "$venv"
}

fill_venv() {
    rm -f "$installed"
    say "installing into $venv: $(sed 's/#.*//' "$requirements" | tr -s '\n ' ' ' | sed 's/^ //;s/ $//')"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -r "$requirements" ||
        fail "pip could not install $requirements (is there a network?). The trainer itself does not need it, the reports do." \
            "Run this again to finish; if it is $venv that is damaged, remove it first"
    cp "$requirements" "$installed"
    own_venv "$venv"
}

# A venv whose pip runs is kept, whatever else is in it, unless even pip does not bring it into order.
make_venv() {
    if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        fill_venv
        venv_complete && return
    fi
    new_venv
    fill_venv
    venv_complete || fail "matplotlib is installed in $venv, but this fails: $venv/bin/python -c 'import matplotlib.backends.backend_agg'"
}

# Made by root through sudo, the files belong to whom the repository belongs to.
own_venv() {
    if [ "$(id -u)" -eq 0 ]; then
        # shellcheck disable=SC2012
        chown -R "$(ls -nd "$root" | awk '{ print $3 ":" $4 }')" "$1"
    fi
}

venv_state=incomplete
! venv_complete || venv_state=complete
find_missing
if [ -n "$missing" ]; then
    if command -v apt-get >/dev/null 2>&1; then
        install_with_apt
        find_missing
        [ -z "$missing" ] || explain_still_missing
    else
        explain_elsewhere
    fi
fi
[ "$venv_state" = complete ] || make_venv
[ -z "$hf" ] || hf_complete || make_hf_venv
say "everything is there"
