#!/bin/sh
# Install the Debian packages that tests use. Without root or apt-get, say what will be skipped; under CI=true, fail.
set -u
missing=""
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v etcd >/dev/null 2>&1 || missing="$missing etcd-server"
command -v ip >/dev/null 2>&1 || missing="$missing iproute2"
# promtool alone is wanted of this one: what Debian recommends beside it stays out.
bare=""
command -v promtool >/dev/null 2>&1 || bare=" prometheus"
[ -z "$missing$bare" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq $missing >/dev/null &&
        apt-get install -y -qq --no-install-recommends $bare >/dev/null && exit 0
fi
echo "not installed, for want of root or of a package:$missing$bare; tests that need them are skipped" >&2
[ "${CI:-}" = true ] && exit 1
exit 0
