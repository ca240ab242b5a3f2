#!/bin/sh
# Start three members of etcd with TLS on this machine, to try a federation with; Ctrl-C ends them.
#   sh scripts/etcd_on_loopback.sh DIR [FIRST_PORT]
# Clients use FIRST_PORT (2379), + 100 and + 200; the members talk to each other on the ports after these.
set -eu
dir=${1:?give a folder for certificates and data}
port=${2:-2379}
mkdir -p "$dir" && cd "$dir"
if [ ! -f etcd-ca.crt ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 365 \
        -subj "/CN=etcd on loopback" -keyout etcd-ca.key -out etcd-ca.crt 2>/dev/null
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=member \
        -keyout member.key -out member.csr 2>/dev/null
    # Its gateway is a client of the member itself: both usages are needed.
    printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' |
        openssl x509 -req -in member.csr -CA etcd-ca.crt -CAkey etcd-ca.key -CAcreateserial -days 365 \
            -extfile /dev/stdin -out member.crt 2>/dev/null
fi
cluster="" endpoints=""
for n in 0 1 2; do
    cluster="$cluster${cluster:+,}m$n=https://127.0.0.1:$((port + 100 * n + 1))"
    endpoints="$endpoints${endpoints:+,}https://127.0.0.1:$((port + 100 * n))"
done
pids=""
trap 'kill $pids 2>/dev/null; wait' EXIT
trap 'exit 0' INT TERM
for n in 0 1 2; do
    client="https://127.0.0.1:$((port + 100 * n))" peer="https://127.0.0.1:$((port + 100 * n + 1))"
    etcd --name "m$n" --data-dir "m$n" --listen-client-urls "$client" --advertise-client-urls "$client" \
        --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "$cluster" \
        --initial-cluster-state new --cert-file member.crt --key-file member.key \
        --peer-cert-file member.crt --peer-key-file member.key --peer-trusted-ca-file etcd-ca.crt \
        --peer-client-cert-auth --auto-compaction-mode periodic --auto-compaction-retention 1h >"m$n.log" 2>&1 &
    pids="$pids $!"
done
echo "etcd: --register etcd --endpoints $endpoints --etcd-ca $dir/etcd-ca.crt"
wait
