#!/usr/bin/env bash
# Makes the certificate that mosquitto.conf names, signed by an authority of its own.
set -euo pipefail

usage='usage: make-credentials.sh DIR HOST...

Fills the new folder DIR with ca.crt, server.crt and server.key, and an empty folder members for what the coordinator
writes. HOST: each name or address under which members reach the broker. Writes the address for --broker to standard
output.'
days=3650

fail() {
  printf 'error: %s\n' "$1" >&2
  exit 2
}

case "${1-}" in -h | --help) printf '%s\n' "$usage"; exit 0 ;; esac
[ $# -ge 2 ] || fail "${usage%%$'\n'*}"
dir=$1
shift
command -v openssl >/dev/null || fail "openssl is missing: install the package openssl"
[ ! -e "$dir" ] || fail "$dir exists: invites that are out hold its certificate; name a new folder"

names=
for host; do
  case $host in
    '' | *[!A-Za-z0-9.:_-]*) fail "'$host' is neither a host name nor an address" ;;
    *:*) names+=,IP:$host ;;
    *[!0-9.]*) names+=,DNS:$host ;;
    *) names+=,IP:$host ;;
  esac
done

mkdir -p "$(dirname "$dir")"
umask 077
work=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$work"' EXIT

cat >"$work/openssl.cnf" <<END
[req]
prompt = no
distinguished_name = authority
[authority]
CN = dtfm broker authority
[authority_extensions]
basicConstraints = critical, CA:TRUE, pathlen:0
keyUsage = critical, keyCertSign
subjectKeyIdentifier = hash
[server_extensions]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = ${names#,}
END
quietly() {
  "$@" 2>"$work/said" || fail "$1 failed: $(tail -n 1 "$work/said")"
}
make_key=(openssl req -config "$work/openssl.cnf" -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)
quietly "${make_key[@]}" -x509 -days "$days" -extensions authority_extensions \
  -keyout "$work/ca.key" -out "$work/ca.crt"
quietly "${make_key[@]}" -subj '/CN=dtfm broker' -keyout "$work/server.key" -out "$work/server.csr"
quietly openssl x509 -req -in "$work/server.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" \
  -set_serial "0x$(openssl rand -hex 8)" -days "$days" \
  -extfile "$work/openssl.cnf" -extensions server_extensions -out "$work/server.crt"

mkdir "$work/members"
chmod 755 "$work/members"
chmod 644 "$work/ca.crt" "$work/server.crt"
# The authority's key goes, too: nobody can make a second broker that the members would trust.
rm -f "$work"/{openssl.cnf,server.csr,ca.key,said}
if [ "$(id -u)" = 0 ] && getent group mosquitto >/dev/null; then
  chgrp -R mosquitto "$work"
  chmod 750 "$work"
  chmod 640 "$work/server.key"
fi
mv "$work" "$dir"
trap - EXIT

case $1 in *:*) address="[$1]" ;; *) address=$1 ;; esac
printf 'wrote %s; the address for --broker:\n' "$dir" >&2
printf 'mqtts://%s:8883\n' "$address"
