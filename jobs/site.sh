# What this cluster is like: the one file to edit. Jobs read it; so do you, before sbatch:
#
#     . jobs/site.sh && sbatch jobs/easgd.sbatch
#
# What is set in the shell before goes before what stands here.

# module load python openmpi    # Python 3.11 or newer, and an MPI unless the environment below brings one as a wheel

: "${VENV=venv}"   # the virtual environment with mpitrain in it; VENV= takes the python that the modules bring

# export SBATCH_ACCOUNT=...     # --account; every option of sbatch has such a variable, see its manual
# export SBATCH_PARTITION=...   # --partition

# cpu, gpu, or auto: a GPU where the job has one. `export DEVICE=gpu` before this file is read asks Slurm for one a rank
# as well; where it does not know --gpus-per-task, `export GRES=gpu:4` asks for four a node by --gres.
: "${DEVICE:=auto}"
if [ "$DEVICE" = gpu ] && [ -z "${SLURM_JOB_ID:-}" ]; then
    unset SBATCH_GPUS_PER_TASK   # of an earlier try in this shell
    if [ -n "${GRES:-}" ]; then export SBATCH_GRES=$GRES; else export SBATCH_GPUS_PER_TASK=1; fi
    # export SBATCH_PARTITION=...
fi

# How MPI programs start here: "srun --mpi=pmix", "srun --mpi=pmi2" or "mpirun". Empty: each job takes the first of
# these that starts two ranks that know of each other.
: "${LAUNCHER:=}"

# The words that start a command in a container, such as "apptainer exec --nv mpitrain.sif": each rank is started by
# them, instead of in VENV. compare.sbatch, whose program starts others, wants VENV.
: "${CONTAINER:=}"
[ -z "$CONTAINER" ] || export SBATCH_NO_KILL=off   # nothing goes on when a node fails: Slurm requeues the job

export VENV DEVICE LAUNCHER CONTAINER
