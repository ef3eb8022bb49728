#!/bin/bash
# @command@
#SBATCH --job-name=@name@
#SBATCH --nodes=@nodes@
#SBATCH --ntasks-per-node=@processes@
#SBATCH --output=@output@/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
@job_gpus@
@options@
set -euo pipefail
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
listed() { local IFS=,; echo "$*"; }

# Servers on the last nodes, one for each task. One that ends is started again; the run gives it the current weights.
VLLM_API_KEY=$(od -An -tx1 -N16 /dev/urandom | tr -d ' \n')
export VLLM_API_KEY VLLM_SERVER_DEV_MODE=1 VLLM_ALLOW_RUNTIME_LORA_UPDATING=1@invariant@
mkdir -p @output@/weights
serving=("${nodes[@]:@training@}")
if ((${#serving[@]})); then
  srun --overlap --nodes=@servers@ --ntasks=@server_tasks@ --ntasks-per-node=@tasks_each@ @server_gpus@ --nodelist="$(listed "${serving[@]}")" \
    bash -c 'while :; do "$@" --port $((8000 + SLURM_LOCALID)) || true; sleep 5; done' server \
    @server@ &
  DEBATE_VLLM_URLS=$(for node in "${serving[@]}"; do for ((n = 0; n < @tasks_each@; n++)); do echo "http://$node:$((8000 + n))"; done; done)
  export DEBATE_VLLM_URLS
fi

# A job that SLURM has put back after a lost node goes on from the last checkpoint, or begins again.
resume=()
if [ -e @output@/run/recipe.yaml ]; then resume=(--resume); fi
srun --overlap --kill-on-bad-exit=1 --nodes=@training@ --ntasks=@ranks@ --ntasks-per-node=@processes@ @gpus@ --nodelist="$(listed "${nodes[@]:0:@training@}")" \
  @train@ --output @output@/run "${resume[@]}"
