#!/usr/bin/env bash
#SBATCH --job-name=sidco
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --time=12:00:00
# sbatch scripts/slurm_job.sh [overrides]: the speed-up grid over the nodes of this allocation, one copy of the command
# on each. Resubmit it after a time-out: what is done is not run again. (For a SLURM job for each cell of a grid,
# instead of one for all, see hydra/launcher=submitit_slurm in the README.)
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?start it by sbatch, from the checkout}"
srun --kill-on-bad-exit=1 .venv/bin/python -m experiments.train -m experiment=speedup network=cluster \
  workers.world_size="${SLURM_JOB_NUM_NODES}" output=outputs/cluster "$@"
.venv/bin/python -m experiments.report outputs/cluster
