# shellcheck shell=bash
# What scripts/test --fresh is about: a machine that has Debian's base, Python and git, and somebody who has just arrived there.
# Sourced after setup.sh.

# What the machine has set for everybody: where packages come from, and how to compute on this processor.
KEPT_VARIABLES="PIP_*|*_proxy|*_PROXY|SSL_CERT_*|*_CA_BUNDLE|OPENBLAS_*|LANG|LC_*|TZ|TERM|CI"
OWN_VARIABLES="PIP_CACHE_DIR|PIP_CONFIG_FILE|PIP_PREFIX|PIP_TARGET|PIP_USER"
ORDINARY_USER=nobody # as whom, if we are root

# fresh FOLDER COMMAND...: makes such a place in a folder, and runs a command in a copy of the checkout there: as an ordinary
# user, with an empty home, no caches, and nothing on PATH but what such a machine has.
fresh() {
    FRESH="$1"
    shift
    command -v dpkg-query >/dev/null || fail "--fresh needs dpkg, which knows what every Debian has"
    [[ ! -e $FRESH ]] || fail "$FRESH: there is something already" 2
    mkdir -p "$FRESH"/{bin,checkout,home,tmp} || fail "$(who) cannot write $FRESH: choose another folder" 2
    link_base_programs
    copy_checkout
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

# What every Debian has (essential, or of the priority that an installation begins with), as far as it is for ordinary users;
# Debian's Python, and git.
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

# What a clone would have, with changes that are not committed.
copy_checkout() {
    git -c safe.directory="$ROOT" -C "$ROOT" ls-files -z --cached --others --exclude-standard |
        tar --create --directory "$ROOT" --null --verbatim-files-from --files-from - --ignore-failed-read --warning=no-failed-read |
        tar --extract --directory "$FRESH/checkout" || fail "the checkout cannot be copied to $FRESH"
}
