# shellcheck shell=bash
# For scripts/test --debian: runs a command in another Debian beside this one, with its own Python, packages and files; as
# root. Sourced after setup.sh and fresh.sh.

# shellcheck disable=SC2034  # scripts/test has it
OTHER_DEBIAN=trixie # for scripts/test --all: Debian 13, with Python 3.13

# debian NAME FOLDER COMMAND...: sets up the release in a folder, with a copy of the checkout in /srv/sa_atp, unless it is there
# already, and runs a command in the copy. The network and the processes are this machine's.
debian() {
    local root="$2"
    debian_is_there "$1" "$root" ca-certificates,git
    shift 2
    in_debian "$root" HOME=/root "$@"
}

# fresh_debian NAME FOLDER COMMAND...: the same for an ordinary user with an empty home, and with Python, in a new folder
fresh_debian() {
    local root="$2" id
    [[ ! -e $root ]] || fail "$root exists already: choose another folder" 2
    debian_is_there "$1" "$root" ca-certificates,git,python3,python3-venv
    shift 2
    id="$(id -u "$ORDINARY_USER")"
    mkdir "$root/srv/home" && chown -R "$id:$id" "$root/srv"
    in_debian "$root" HOME=/srv/home USER="$ORDINARY_USER" LOGNAME="$ORDINARY_USER" SHELL=/bin/sh \
        setpriv --reuid "$id" --regid "$id" --clear-groups --inh-caps=-all -- "$@"
}

debian_is_there() {
    local name="$1" root="$2"
    is_root || fail "another Debian is set up as root: run this as root (sudo), or leave out --debian"
    [[ ! -e $root/srv/sa_atp ]] || return 0
    command -v debootstrap >/dev/null || install_debootstrap
    say "setting up Debian $name in $root"
    mkdir -p "$root" || fail "$(who) cannot write $root: choose another folder" 2
    chmod 755 "$root"
    quietly "debootstrap $name" debootstrap --variant=minbase --include="$3" "$name" "$root" "$(debian_mirror)"
    bring_settings "$root"
    FRESH="$root/srv" && mkdir "$FRESH/checkout" && copy_checkout && mv "$FRESH/checkout" "$FRESH/sa_atp"
    git init --quiet "$FRESH/sa_atp" # some tests ask for the checkout's commit
}

install_debootstrap() {
    command -v apt-get >/dev/null || fail "--debian needs debootstrap, and there is no apt-get to install it with"
    say "installing debootstrap with apt-get"
    apt_install debootstrap
}

# The archive that this Debian uses.
debian_mirror() {
    local found
    found="$(sed -n 's/^URIs: *//p; s/^deb  *\([a-z]*:[^ ]*\).*/\1/p' /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null)"
    echo "${found%%$'\n'*}"
}

# bring_settings ROOT: how to reach packages: names, certificates, proxies, indexes
bring_settings() {
    local file
    mkdir -p "$1/oldroot"
    for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt /etc/pip.conf; do
        [[ ! -e $file ]] || cp -L "$file" "$1$file"
    done
    cp /etc/apt/apt.conf.d/* "$1/etc/apt/apt.conf.d/" 2>/dev/null || true
}

# in_debian ROOT [VARIABLE=VALUE...] COMMAND...: runs a command with another root. By pivot_root, in a mount namespace of its own: Mininet's mnexec
# would leave a chroot.
in_debian() {
    local root="$1" variable variables=()
    shift
    for variable in $(compgen -e); do
        if [[ $variable == @($KEPT_VARIABLES) && $variable != @($OWN_VARIABLES|PIP_FIND_LINKS) ]]; then
            variables+=("$variable=${!variable}")
        fi
    done
    # shellcheck disable=SC2016  # that shell expands them
    env -i "${variables[@]}" PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        unshare --mount --propagation private bash -c '
            set -e
            root="$1"
            shift
            mount --rbind "$root" "$root"
            mount -t proc proc "$root/proc"
            mount --rbind /sys "$root/sys"
            mount --rbind /dev "$root/dev"
            cd "$root"
            pivot_root . oldroot
            umount --lazy /oldroot
            cd /srv/sa_atp
            exec env "$@"' in_debian "$root" "$@"
}
