#!/usr/bin/env bash
# Finds what the project is built and tested with: Go and the PostgreSQL server binaries. What is missing is installed
# from the distribution's packages (apt-get, as root or through sudo). It says what it does and touches nothing else.
#
#   deploy/setup.sh          find, and install what is missing
#   deploy/setup.sh --check  find, install nothing; exit 1 where something is missing
#   deploy/setup.sh --path   print PATH with the directory of the Go it found in front
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

need=$(sed -n 's/^go \([0-9]*\.[0-9]*\).*/\1/p' go.mod)
go_places=(/usr/local/go/bin /usr/lib/go/bin /usr/lib/go-*/bin /opt/go/bin /opt/homebrew/bin "${HOME:-/}/go/bin" "${HOME:-/}"/sdk/go*/bin)
pg_places=(/usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin /opt/homebrew/opt/postgresql@*/bin /usr/local/opt/postgresql@*/bin)

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# at_least VERSION FLOOR
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n1) == "$2" ]]; }

# go_is_enough GO: that go command is, or from 1.21 on may fetch (GOTOOLCHAIN), the version go.mod asks for.
go_is_enough() {
  local version
  version=$("$1" env GOVERSION 2>/dev/null) || return 1
  version=${version#go}
  [[ $version =~ ^[0-9]+\.[0-9]+ ]] && at_least "$version" "$need"
}

# find_go prints the directory of the first go command that is enough.
find_go() {
  local places=() dir
  IFS=: read -ra places <<<"$PATH"
  for dir in "${places[@]}" "${go_places[@]}"; do
    if [[ -x $dir/go ]] && go_is_enough "$dir/go"; then
      printf '%s\n' "$dir"
      return
    fi
  done
  return 1
}

# find_postgres prints the directory of the newest server that has all the tools a test uses.
find_postgres() {
  local places=() dir tool best="" newest=0 major
  IFS=: read -ra places <<<"$PATH"
  for dir in ${PGRESHARD_PG_BIN:+"$PGRESHARD_PG_BIN"} "${places[@]}" "${pg_places[@]}"; do
    for tool in postgres initdb pg_ctl pg_dump pg_restore psql; do
      [[ -x $dir/$tool ]] || continue 2
    done
    major=$("$dir/postgres" --version | sed -n 's/^postgres (PostgreSQL) \([0-9]*\).*/\1/p')
    if (( ${major:-0} > newest )); then
      newest=$major best=$dir
    fi
  done
  [[ -n $best ]] && printf '%s\n' "$best"
}

as_root() {
  if (( $(id -u) == 0 )); then "$@"; else sudo "$@"; fi
}

updated=
update_packages() {
  [[ -z $updated ]] || return 0
  command -v apt-get >/dev/null || fail "no apt-get here: install $1 with this system's package manager, then run this again"
  (( $(id -u) == 0 )) || command -v sudo >/dev/null || fail "$1 is missing, and installing it needs root or sudo: run $PWD/deploy/setup.sh as root, then this again"
  say "apt-get update"
  as_root apt-get update -qq >&2
  updated=yes
}

install_packages() {
  say "apt-get install $*"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "$@" >&2
}

# go_package prints the distribution's first Go package that is enough or will fetch what is: golang-go, else its newest
# versioned one (golang-1.23-go).
go_package() {
  local package version
  for package in golang-go $(apt-cache pkgnames golang-1 | grep -E '^golang-1\.[0-9]+-go$' | sort -V | tail -n1); do
    version=$(LC_ALL=C apt-cache policy "$package" | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}\([0-9]*\.[0-9]*\).*/\2/p')
    if [[ -n $version ]] && at_least "$version" 1.21; then
      printf '%s\n' "$package"
      return
    fi
  done
  return 1
}

# other_ways_to_go says how to get a Go that this system's packages do not have.
other_ways_to_go() {
  local codename=""
  codename=$(. /etc/os-release 2>/dev/null && [[ ${ID:-} == debian ]] && printf '%s' "${VERSION_CODENAME:-}") || true
  say "hint: install it from https://go.dev/dl into /usr/local/go and run this again"
  [[ $codename == bookworm ]] || return 0
  say "hint: or take it from Debian's backports, as root:"
  say "  echo 'deb http://deb.debian.org/debian bookworm-backports main' >/etc/apt/sources.list.d/backports.list"
  say "  apt-get update && apt-get install -t bookworm-backports golang-go"
}

# install_postgres installs the server's binaries only: while it does, a drop-in tells Debian's packages not to make
# and start a cluster of their own.
install_postgres() {
  local dropin=/etc/postgresql-common/createcluster.d/pgreshard-setup.conf
  update_packages "a PostgreSQL server"
  install_packages postgresql-common
  say "for the time of the installation: create_main_cluster = false in $dropin"
  as_root mkdir -p "${dropin%/*}"
  echo "create_main_cluster = false" | as_root tee "$dropin" >/dev/null
  trap 'as_root rm -f /etc/postgresql-common/createcluster.d/pgreshard-setup.conf' EXIT
  install_packages postgresql
}

set_up_go() {
  local dir package
  if ! dir=$(find_go); then
    [[ $mode == check ]] && { say "Go $need or newer: missing"; return 1; }
    update_packages "Go $need or newer"
    if ! package=$(go_package); then
      say "Go $need or newer is missing, and this system's packages have none that is, or can fetch it (1.21 and newer)"
      other_ways_to_go
      exit 1
    fi
    install_packages "$package" ca-certificates
    go_places+=(/usr/lib/go-*/bin)
    if ! dir=$(find_go); then
      for dir in /usr/lib/go-*/bin; do "$dir/go" version >&2 || true; done
      say "$package is installed, but did not get itself Go $need: it needs GOTOOLCHAIN=auto and to reach GOPROXY"
      other_ways_to_go
      exit 1
    fi
  fi
  say "Go: $dir/go ($("$dir/go" env GOVERSION))"
}

set_up_postgres() {
  local dir
  if ! dir=$(find_postgres); then
    [[ $mode == check ]] && { say "PostgreSQL server binaries: missing"; return 1; }
    install_postgres
    pg_places+=(/usr/lib/postgresql/*/bin)
    dir=$(find_postgres) || fail "no PostgreSQL server was found after installing it: set PGRESHARD_PG_BIN to the directory of its postgres, initdb and pg_dump"
  fi
  say "PostgreSQL: $dir ($("$dir/postgres" --version))"
}

mode=install
case ${1:-} in
  "") ;;
  --check) mode=check ;;
  --path)
    dir=$(find_go) || dir=
    printf '%s\n' "${dir:+$dir:}$PATH"
    exit
    ;;
  *) fail "unknown argument $1 (hint: --check or --path)" ;;
esac

missing=0
set_up_go || missing=1
set_up_postgres || missing=1
exit "$missing"
