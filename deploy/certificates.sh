#!/bin/sh
# Makes the authority and the three certificates of the Dask links: for compose, for tests, and for a cluster without cert-manager.
#   deploy/certificates.sh DIRECTORY [DAYS]
# Gives DIRECTORY/ca.crt, ca.key and, for each of scheduler, worker and app, ROLE/{ca.crt,tls.crt,tls.key}.
# Dask checks that a certificate comes from the authority, not the name in it: guard ca.key, or take it away.
set -eu
umask 077
directory=${1:?a directory for the certificates is needed, such as ./tls}
days=${2:-365}
if [ -e "$directory/ca.key" ]; then
    echo "$directory/ca.key is there already: new certificates would not fit the running pods; name another directory." >&2
    exit 1
fi
mkdir -p "$directory"
new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
new_key "$directory/ca.key"
openssl req -x509 -new -sha256 -key "$directory/ca.key" -days "$days" -subj "/CN=explorer-dask-ca" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" -out "$directory/ca.crt"
for role in scheduler worker app; do
    mkdir -p "$directory/$role"
    new_key "$directory/$role/tls.key"
    printf '%s\n' "subjectAltName=DNS:$role,DNS:$role.explorer.svc" "extendedKeyUsage=serverAuth,clientAuth" \
        "keyUsage=critical,digitalSignature" "basicConstraints=critical,CA:FALSE" >"$directory/$role/extensions"
    openssl req -new -sha256 -key "$directory/$role/tls.key" -subj "/CN=$role" -out "$directory/$role/request"
    openssl x509 -req -sha256 -in "$directory/$role/request" -CA "$directory/ca.crt" -CAkey "$directory/ca.key" \
        -CAcreateserial -days "$days" -extfile "$directory/$role/extensions" -out "$directory/$role/tls.crt" 2>/dev/null
    rm "$directory/$role/extensions" "$directory/$role/request"
    cp "$directory/ca.crt" "$directory/$role/ca.crt"
done
rm -f "$directory/ca.srl"
