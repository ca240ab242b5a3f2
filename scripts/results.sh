#!/bin/sh
# Plays the races of docs/methods.md and keeps them in benchmarks/results/races; called again, goes on where it stopped.
#
#     sh scripts/results.sh digits|mnist|cifar10 [SEEDS]         (3 seeds unless given; cifar10 needs $WEIGHTS)
#
# Minutes for digits, a day for the others on two cores. Runs lie in runs/races. What a full barrier method computes does
# not depend on the loads, so it is trained once and put under the other clock by benchmarks.retimed; so is fedavg with
# the server beside the nodes.
set -eu
dataset=$1 seeds=${2:-3}
bin=${BIN:-.venv/bin} out=${OUT:-runs/races} kept=benchmarks/results/races
LOADS_DECIDE=express,fedavg-m-of-n,gossip-m-of-n,gossip-async,feddc-load-aware  # what these compute depends on the loads
BARRIERS="fedavg fedprox cyclic gossip gossip-ring gossip-pairs feddc pdmm admm cmfd"
all=$LOADS_DECIDE,$(echo $BARRIERS | tr ' ' ,)

case $dataset in
digits)
    samples_a_node=80000 common="--set budget.seconds=300"
    tuned_ours="--set training.learning_rate=0.005 --set variance_limit=25600"
    tuned_express="--set training.learning_rate=0.015 --set variance_limit=6400" ;;
mnist)
    samples_a_node=30000
    common="--test-every 300 --set evaluation.test_samples=2000 --set budget.seconds=2000"
    tuned_ours="--set training.learning_rate=0.003"
    tuned_express="--set training.learning_rate=0.003 --set variance_limit=40000" ;;
cifar10)
    samples_a_node=8000
    common="--test-every 300 --weights $WEIGHTS --set training.precision=bf16 --set evaluation.test_samples=1000 --set budget.seconds=20000"
    tuned_ours="" tuned_express="" ;;
*) echo "results.sh: $dataset is no data set of the races; name digits, mnist or cifar10." >&2; exit 2 ;;
esac
