# shellcheck shell=bash
# Sets up the Python environment of scripts/demo and scripts/test. Sourced, not run.
#
#   SA_ATP_VENV    where it is (default: .venv in the checkout)
#   SA_ATP_PYTHON  the Python to make it with (default: the first python3 that is new enough)
#
# Its packages have the versions that were tested (constraints.txt), unless VERSIONS is newest or lowest (scripts/test --help).
# scripts/test hands VERSIONS on as SA_ATP_VERSIONS, so that a demo within its tests leaves its environment as it is.
# It is made once; after that, reading its stamp is enough, and no network is needed. Concurrent set-ups wait for each other.

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
VENV="${SA_ATP_VENV:-$ROOT/.venv}"
[[ $VENV == /* ]] || VENV="$PWD/$VENV"
STAMP="$VENV/.sa-atp-installed"
VERSIONS="${SA_ATP_VERSIONS:-tested}"
PINS="" # a file for pip with the exact versions of this environment
OLDEST_PYTHON="3.11"
PYTHONS=(python3 python3.14 python3.13 python3.12 python3.11)
LOCK_WAIT_S=1800
PATIENCE_S=4 # without a line of output: the next look makes it five at most; after that, lines come ever more seldom
LARGE_MB=20 # size of a file to fetch from which on a line announces it

say() {
    printf '[setup] %s\n' "$*" >&2
    TOLD=$SECONDS
}

# fail MESSAGE [STATUS]: one line and the end; 3 means that a part is missing (as for sa-atp)
fail() {
    printf '[setup] %s\n' "$1" >&2
    exit "${2:-3}"
}

who() { id -un 2>/dev/null || id -u; }
is_root() { [[ $(id -u) == 0 ]]; }

# --- the environment -----------------------------------------------------------------------------------------------------

# setup EXTRA...: makes sure that $VENV has the project and these extras of pyproject.toml; sets PYTHON.
setup() {
    PYTHON="$VENV/bin/python"
    local want
    want="$(fingerprint) $*"
    home_is_usable
    ours || export PYTHONDONTWRITEBYTECODE=1
    if is_ready "$want"; then return; fi
    can_write_venv
    lock
    if ! is_ready "$want"; then
        MADE+=("$VENV")
        trap hand_over EXIT
        prepare "$@"
        remember "$want"
        hand_over
    fi
    unlock
}

fingerprint() { { cat "$ROOT/pyproject.toml" "$ROOT/constraints.txt" && printf '%s' "$ROOT" "$VERSIONS"; } | sha256sum | cut -c1-24; }

is_ready() {
    # what is newest changes without notice
    [[ $VERSIONS != newest && -r $STAMP ]] && grep -qxF "$1" "$STAMP" && "$PYTHON" -c '' 2>/dev/null
}

# Lines of the stamp are "fingerprint extras"; those of other fingerprints are outdated.
remember() {
    local kept
    kept="$(grep -F "${1%% *} " "$STAMP" 2>/dev/null)"
    printf '%s\n' ${kept:+"$kept"} "$1" >"$STAMP.new" && mv "$STAMP.new" "$STAMP"
}

can_write_venv() {
    local folder="$VENV"
    while [[ ! -e $folder ]]; do folder="$(dirname "$folder")"; done
    [[ -w $folder && -x $folder ]] ||
        fail "$(who) cannot write $folder: run this as its owner, or set SA_ATP_VENV to a folder for the environment"
}

# Whether this user owns the checkout.
ours() { [[ -O $ROOT ]]; }

# Gives files that root makes (MADE) in another user's checkout to its owner, who could neither use nor remove them otherwise.
MADE=()
hand_over() {
    local path
    if ours || ! is_root; then return; fi
    for path in "${MADE[@]}"; do
        [[ $path/ != "$ROOT"/* || ! -e $path ]] || chown -R --no-dereference --reference="$ROOT" "$path"
    done
}

# Locks the folder around the environment, which leaves no lock file, and works on a fresh checkout.
lock() {
    command -v flock >/dev/null || return 0
    mkdir -p "$(dirname "$VENV")"
    exec 9<"$(dirname "$VENV")"
    flock -n 9 && return
    say "another setup is running here: waiting for it"
    watched flock -w "$LOCK_WAIT_S" 9 || fail "the other setup did not end in $((LOCK_WAIT_S / 60)) minutes"
}

unlock() { exec 9<&-; }

prepare() {
    local started=$SECONDS
    if ! works; then
        local base
        base="$(find_python)" || exit
        say "making an environment in $VENV with $("$base" --version 2>&1)"
        quietly "making the environment" "$base" -m venv --clear "$VENV"
    fi
    PINS="$VENV/.sa-atp-versions"
    pins "$@" >"$PINS"
    if [[ $VERSIONS != newest ]] && installed "$@" >/dev/null 2>&1; then
        say "the environment in $VENV has everything"
        return
    fi
    if [[ " $* " == *" torch "* ]] && ! installed --only torch >/dev/null 2>&1; then
        install_torch
    fi
    local project
    project="sa_atp[$(IFS=, && echo "$*")]"
    say "installing $project, in the $VERSIONS versions"
    quietly "installing the packages" pip_install --upgrade --upgrade-strategy eager --editable "${ROOT}${project#sa_atp}"
    local missing
    missing="$(installed "$@")" || fail "pip reported success, but the environment lacks: ${missing//$'\n'/; }"
    say "ready after $((SECONDS - started)) s"
}

# installed [--only NAME] EXTRA...: whether the environment has the packages, in the versions it should have; else prints which not
installed() { "$PYTHON" "$ROOT/scripts/lib/installed.py" "$ROOT" "$PINS" "$@"; }

# pins EXTRA...: prints the versions that the environment should have, for pip; of newest versions nothing
pins() {
    case "$VERSIONS" in
        newest) ;;
        lowest) installed --lowest ;;
        tested)
            if [[ " $* " == *" shell "* ]] || compgen -G "$VENV/lib/*/site-packages/p4runtime_shell*" >/dev/null; then
                cat "$ROOT/constraints.txt"
            else
                sed '/^protobuf==/d; s/^# without shell: //' "$ROOT/constraints.txt"
            fi
            ;;
        *) fail "SA_ATP_VERSIONS=$VERSIONS: expected tested, newest or lowest" 2 ;;
    esac
}

# Whether there is an environment that pip can use: its Python may be gone, or its creation may have been interrupted.
works() {
    "$PYTHON" -c "$PYTHON_PROBE" "$OLDEST_PYTHON" >/dev/null 2>&1 || return
    "$PYTHON" -m pip --version >/dev/null 2>&1 || "$PYTHON" -m ensurepip >/dev/null 2>&1
}

pip_install() { "$PYTHON" -m pip install --disable-pip-version-check --no-input --constraint "$PINS" "$@"; }

install_torch() {
    local choice words
    while read -r choice; do
        read -ra words <<<"$choice"
        say "installing ${words[0]}, a build of PyTorch for the CPU"
        ! watched pip_install "${words[@]}" || return 0
    done < <("$PYTHON" "$ROOT/scripts/lib/cpu_build.py" "$ROOT" "$PINS")
    # measured with torch 2.14.1, on x86-64
    say "no build of PyTorch for the CPU is to be had, where pip looks or at PyTorch's own index: what pip takes instead" \
        "brings CUDA, about 3 GB to fetch and 6 GB on the disk. If that is too much: Ctrl-C, and PIP_FIND_LINKS=FOLDER with" \
        "a build for the CPU, or PIP_EXTRA_INDEX_URL with an index that has one"
}

# quietly WHAT COMMAND...: shows a command's output only if it fails
quietly() {
    local what="$1"
    shift
    watched "$@" && return
    printf '%s' "$LOG" >&2
    fail "$what failed, see above; the first time, this needs the network (or PIP_FIND_LINKS with the wheels)"
}

# watched COMMAND...: keeps a command's output in LOG, announces large files that pip is about to fetch, and says now and then what
# takes so long, whether the command prints lines meanwhile or not.
watched() {
    local line="" last="" began=$SECONDS patience_s=$PATIENCE_S status
    LOG="" TOLD=$SECONDS
    while true; do
        IFS= read -r -t 1 line
        status=$?
        if [[ $status -gt 128 ]]; then # a time-out, with a part of a line
            LOG+="$line"
        elif [[ $status == 0 ]]; then
            LOG+="$line"$'\n'
            line="${line#"${line%%[! ]*}"}"
            if [[ $line =~ ^Downloading\ ([^ ]+)\ (\(([0-9]+)[0-9.]*\ (MB|GB)\)) ]] &&
                [[ ${BASH_REMATCH[4]} == GB || ${BASH_REMATCH[3]} -ge $LARGE_MB ]]; then
                say "fetching ${BASH_REMATCH[1]##*/} ${BASH_REMATCH[2]}"
            fi
            # pip draws bars, and tells of old releases that go before the part that takes long
            if [[ -n $line && ! $line =~ ━|ninstall|existing ]]; then
                last=": $line"
                [[ ${#line} -le 60 ]] || last=": ${line:0:60}..."
            fi
        else
            break
        fi
        if [[ $((SECONDS - TOLD)) -ge $patience_s ]]; then
            say "still at it, after $((SECONDS - began)) s$last"
            patience_s=$((patience_s < 30 ? patience_s * 2 : 60))
        fi
    done < <("$@" 2>&1)
    wait $!
}

# --- Python --------------------------------------------------------------------------------------------------------------

# Prints a Python that is new enough and can make environments; as root on Debian, installs what is missing.
find_python() {
    local tried
    for tried in once again; do
        usable_python && return
        if [[ $tried == again || -n ${SA_ATP_PYTHON:-} ]] || ! is_root || ! command -v apt-get >/dev/null; then break; fi
        say "installing python3 and python3-venv with apt-get"
        apt_install python3 python3-venv
    done
    if [[ -n ${NEARLY:-} ]]; then
        fail "$NEARLY cannot make environments: as root, apt-get install python3-venv, or set SA_ATP_PYTHON to another"
    fi
    [[ -z ${SA_ATP_PYTHON:-} ]] || fail "SA_ATP_PYTHON=$SA_ATP_PYTHON: expected a Python $OLDEST_PYTHON or newer" 2
    fail "no Python $OLDEST_PYTHON or newer on PATH: as root, apt-get install python3 python3-venv on Debian 12 or newer"
}

# Prints the interpreter behind a shim or a virtual environment, which may go away; fails if it is too old.
PYTHON_PROBE='
import sys
if sys.version_info < tuple(map(int, sys.argv[1].split("."))):
    sys.exit(1)
print(getattr(sys, "_base_executable", sys.executable))
'

usable_python() {
    local path
    while read -r path; do
        path="$("$path" -c "$PYTHON_PROBE" "$OLDEST_PYTHON" 2>/dev/null)"
        [[ -x $path ]] || continue
        if "$path" -c 'import ensurepip, venv' 2>/dev/null; then
            printf '%s\n' "$path"
            return
        fi
        NEARLY="$path"
    done < <(if [[ -n ${SA_ATP_PYTHON:-} ]]; then type -p "$SA_ATP_PYTHON"; else type -ap "${PYTHONS[@]}"; fi)
    return 1
}

# apt_install PACKAGE...: installs Debian packages, without recommended ones
apt_install() {
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y)
    watched "${apt[@]}" install --no-install-recommends "$@" && return
    quietly "apt-get update" "${apt[@]}" update
    quietly "apt-get install $*" "${apt[@]}" install --no-install-recommends "$@"
}

# --- Mininet -------------------------------------------------------------------------------------------------------------

# The Debian packages for --mininet, each with a program that shows whether it is installed.
MININET_PROGRAMS="mnexec:mininet ip:iproute2 tc:iproute2 ifconfig:net-tools iperf3:iperf3"

setup_mininet() {
    is_root || fail "Mininet makes network namespaces: run this as root (sudo), or leave out --mininet"
    local pair packages=()
    for pair in $MININET_PROGRAMS; do
        command -v "${pair%%:*}" >/dev/null || packages+=("${pair#*:}")
    done
    if [[ ${#packages[@]} -gt 0 ]]; then
        command -v apt-get >/dev/null || fail "Mininet needs ${packages[*]}, and there is no apt-get to install them with"
        say "installing with apt-get: ${packages[*]}"
        apt_install "${packages[@]}"
    fi
}

# --- folders ---------------------------------------------------------------------------------------------------------------

# Matplotlib needs a folder below HOME, and warns on every start if it cannot write there.
home_is_usable() {
    if [[ -z ${HOME:-} || ! -w $HOME ]]; then
        export MPLCONFIGDIR="${MPLCONFIGDIR:-${TMPDIR:-/tmp}/sa_atp-matplotlib-$(id -u)}"
        mkdir -p "$MPLCONFIGDIR"
    fi
}
