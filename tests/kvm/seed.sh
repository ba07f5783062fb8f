#!/bin/sh
# What the README promises of the template seed:latest, on the server that SPACE_URL and SPACE_API_KEY name.
#
#   seed.sh [PATH_OF_THE_CLIENT]
set -eu
exec "${1:-space}" run --template seed:latest --user user -- sh -euxc '
for program in python3 bash curl git sudo; do command -v "$program"; done
test -s /etc/ssl/certs/ca-certificates.crt
test "$(id -un) $HOME" = "user /home/user"
test "$(sudo -n id -un)" = root
test "$(python3 -c "import json, ssl, subprocess; print(6 * 7)")" = 42
git init -q /tmp/repository
'
