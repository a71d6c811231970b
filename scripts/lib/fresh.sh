# shellcheck shell=bash
# For scripts/test --fresh: runs a command as on a fresh machine, with Debian's base system, Python and git, for an ordinary
# user. Sourced after setup.sh.

# Variables of the machine that are kept: package indexes, proxies, locale, tuning for the processor.
KEPT_VARIABLES="PIP_*|*_proxy|*_PROXY|SSL_CERT_*|*_CA_BUNDLE|OPENBLAS_*|LANG|LC_*|TZ|TERM|CI"
OWN_VARIABLES="PIP_CACHE_DIR|PIP_CONFIG_FILE|PIP_PREFIX|PIP_TARGET|PIP_USER"
ORDINARY_USER=nobody # the user, if we are root
COMPILED=""          # a folder of compiled code, see sa_atp/basics/code_cache.py, that the fresh machine is to have, too

# fresh FOLDER COMMAND...: runs a command in a copy of the checkout in a new folder: as an ordinary user, with an empty home,
# no caches, and only the programs of a fresh machine on PATH.
fresh() {
    FRESH="$1"
    shift
    command -v dpkg-query >/dev/null || fail "--fresh needs dpkg, which knows what every Debian has"
    [[ ! -e $FRESH ]] || fail "$FRESH exists already: choose another folder" 2
    mkdir -p "$FRESH"/{bin,checkout,home,tmp} || fail "$(who) cannot write $FRESH: choose another folder" 2
    link_base_programs
    copy_checkout
    [[ -z $COMPILED ]] || cp -a "$COMPILED" "$FRESH/cache" || fail "$COMPILED cannot be copied to $FRESH"
    local user=() name variables=()
    name="$(who)"
    if is_root; then
        name="$ORDINARY_USER"
        user=(setpriv --reuid "$(id -u "$name")" --regid "$(id -g "$name")" --clear-groups --inh-caps=-all --)
        chown -R "$name:" "$FRESH"
        "${user[@]}" ls "$FRESH" >/dev/null 2>&1 || fail "$name may not enter $FRESH: choose a place that is open to all, by TMPDIR or --in FOLDER"
    fi
    local variable
    for variable in $(compgen -e); do
        if [[ $variable == @($KEPT_VARIABLES) && $variable != @($OWN_VARIABLES) ]]; then
            variables+=("$variable=${!variable}")
        fi
    done
    local programs=("$FRESH"/bin/*)
    say "as $name, with ${#programs[@]} programs on PATH, in $FRESH"
    (cd "$FRESH/checkout" && "${user[@]}" env -i "${variables[@]}" PATH="$FRESH/bin" HOME="$FRESH/home" TMPDIR="$FRESH/tmp" \
        SA_ATP_CACHE="$FRESH/cache" USER="$name" LOGNAME="$name" SHELL=/bin/sh "$@")
}

# Links the programs of every Debian (packages that are essential or required) for ordinary users, Debian's Python, and git.
link_base_programs() {
    if ! /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null; then
        is_root || fail "Debian's Python is not here, or cannot make environments: as root, apt-get install python3 python3-venv"
        say "installing Debian's python3 and python3-venv"
        apt_install python3 python3-venv
    fi
    local essential priority package path packages=()
    while IFS='|' read -r essential priority package; do
        [[ $essential != yes && $priority != required ]] || packages+=("$package")
    done < <(dpkg-query --show --showformat '${Essential}|${Priority}|${Package}\n')
    local -A base=()
    while read -r path; do
        [[ ! -x $path || -d $path ]] || { base[$path]=1 && ln -sf "$path" "$FRESH/bin/"; }
    done < <(dpkg-query --listfiles "${packages[@]}" | grep -E '^(/usr)?/bin/[^/]+$')
    local name target
    while read -r name target; do # awk is mawk, which is gawk elsewhere
        [[ ! ${base[$target]+is} || ! -x /usr/bin/$name ]] || ln -sf "$target" "$FRESH/bin/$name"
    done < <(find /etc/alternatives -type l -printf '%f %l\n')
    for name in "${PYTHONS[@]}" git; do
        [[ ! -x /usr/bin/$name ]] || ln -sf "/usr/bin/$name" "$FRESH/bin/"
    done
}

# Copies the files of a clone, with uncommitted changes.
copy_checkout() {
    git -c safe.directory="$ROOT" -C "$ROOT" ls-files -z --cached --others --exclude-standard |
        tar --create --directory "$ROOT" --null --verbatim-files-from --files-from - --ignore-failed-read --warning=no-failed-read |
        tar --extract --directory "$FRESH/checkout" || fail "the checkout cannot be copied to $FRESH"
}
