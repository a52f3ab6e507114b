# Start the program in a Slurm job, however MPI programs start here, and requeue the job when it was cut short.
# Sourced by the job scripts in the folder that holds jobs/:
#
#     train CONFIG ARGUMENTS...  python -m mpitrain launch on all ranks; the run lies in $OUT. If the arguments begin with
#                                a configuration, as in `sbatch jobs/easgd.sbatch net.toml`, it takes CONFIG's place
#     on_ranks N COMMAND...      any MPI program on N ranks
#     watched COMMAND...         any program, warned and requeued as they are
#
# When a rank is lost, `launch` starts them again, on the nodes that still answer; #SBATCH --no-kill keeps the job there.
# Slurm warns the job by SIGUSR1 (#SBATCH --signal=B:USR1@...), or ends it by SIGTERM: the ranks finish their minibatch,
# write a checkpoint and leave with status 75. The job then requeues itself, and its next start goes on from there.
# A cancelled job writes its checkpoint, too, but stays away: `OUT=runs/easgd-123 sbatch jobs/easgd.sbatch` takes it up.

set -u
. jobs/site.sh
[ -n "$CONTAINER" ] || [ -z "$VENV" ] || . "$VENV/bin/activate" || exit 2

STOPPED=75 # the program's status when a signal ended it and its checkpoint is written

# srun does not take --cpus-per-task from the job by itself; the program takes its threads a rank from the former.
export SLURM_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# A rank that dies ends the others, as with mpirun. Not at once: ranks that leave with status 75 do not leave at the same
# instant, and a job whose last ones are killed would seem to have failed, and not go back into the queue.
export SLURM_KILL_BAD_EXIT=0 SLURM_WAIT=20
# Open MPI's mpirun would bind all threads of a rank to one core. The first name is that of version 5.
export PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_hwloc_base_binding_policy=none

train() {
    local device=() job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}
    case ${2:-} in "" | -*) ;; *) shift ;; esac
    # Of a heterogeneous job, the server's component need not have a GPU.
    [ "$DEVICE" = auto ] || [ -n "${SLURM_HET_SIZE:-}" ] || device=(--set "run.device=$DEVICE")
    : "${OUT:=runs/$SLURM_JOB_NAME-$job}"
    set -- "$@" "${device[@]}" --continue "$OUT"
    # In a container there is no srun for `launch` to call, and outside of it perhaps no mpitrain.
    [ -z "$CONTAINER" ] || on_ranks "$SLURM_NTASKS" $CONTAINER python -m mpitrain train "$@"
    find_launcher
    watched python -m mpitrain launch -n "$SLURM_NTASKS" --launch "$LAUNCHER $(as_many "{ranks}")" "$@"
}

on_ranks() {
    local ranks=$1
    shift
    find_launcher
    watched shielded $LAUNCHER $(as_many "$ranks") "$@"
}

# The option of a launcher for so many ranks. A heterogeneous job has those of all its components.
as_many() {
    if [ -n "${SLURM_HET_SIZE:-}" ]; then echo "--het-group=0-$((SLURM_HET_SIZE - 1))"; else echo "-n $1"; fi
}

# Slurm's warnings are counted from here on, and passed on to the program once it runs.
pid="" warned=0
trap 'warned=$((warned + 1)); [ -z "$pid" ] || kill -USR1 "$pid" 2>/dev/null' USR1 TERM

# Run a program; afterwards requeue the job if it was a warning that ended it.
watched() {
    local words="$*" seen status=$STOPPED
    echo "$(date '+%F %T') job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): ${words#shielded }"
    if [ $warned = 0 ]; then
        "$@" </dev/null &
        pid=$!
        while :; do # a signal ends `wait`, not the program
            seen=$warned
            wait "$pid"
            status=$?
            [ "$seen" = "$warned" ] && break
        done
    fi
    if [ $status = $STOPPED ] || { [ $status != 0 ] && [ $warned != 0 ]; }; then
        requeue
    fi
    exit $status
}

# Slurm sends SIGTERM to every process of a job; a mpirun that takes it kills the ranks, which need seconds to save.
shielded() {
    exec python3 -c 'import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
os.execvp(sys.argv[1], sys.argv[1:])' "$@"
}

# MPICH names its shared memory by job and step, which a requeued job has again: what killed ranks left there would be
# taken for that of the new ones, and MPI_Init fails ("Message truncated"). What no process maps is left over.
clear_shared_memory() {
    local nodes="--nodes=$SLURM_NNODES --ntasks=$SLURM_NNODES --ntasks-per-node=1"
    [ -z "${SLURM_HET_SIZE:-}" ] || nodes=$(as_many)
    srun $nodes bash -c '
        for file in /dev/shm/mpich_shm_*; do
            [ -O "$file" ] && ! grep -qs "$file" /proc/[0-9]*/maps && rm -f "$file"
        done
        true' </dev/null
}

# Every launcher starts something; the right one makes two processes one MPI job, or all of a heterogeneous job's, which
# mpirun does not start with what each component has.
find_launcher() {
    local size=$((SLURM_NTASKS > 1 ? 2 : 1)) number launchers=("srun --mpi=pmix" "srun --mpi=pmi2" mpirun)
    local ask='from mpi4py import MPI; print(MPI.COMM_WORLD.size)' found errors failed=""
    [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || clear_shared_memory
    [ -z "$LAUNCHER" ] || return 0
    if [ -n "${SLURM_HET_SIZE:-}" ]; then
        size=0 launchers=("srun --mpi=pmix" "srun --mpi=pmi2")
        for ((number = 0; number < SLURM_HET_SIZE; number++)); do
            local tasks=SLURM_NTASKS_HET_GROUP_$number
            size=$((size + ${!tasks:-1}))
        done
    fi
    errors=$(mktemp)
    for LAUNCHER in "${launchers[@]}"; do
        found=$(timeout 60 $LAUNCHER $(as_many $size) $CONTAINER python -c "$ask" 2>"$errors" </dev/null | sort -u | xargs)
        [ "$found" = "$size" ] && rm -f "$errors" && return
        failed+="  $LAUNCHER: jobs of ${found:-no} ranks; $(sed '/^srun: error: .*Exited with/d' "$errors" | tail -n 1)"$'\n'
    done
    echo "jobs/launch.sh: neither srun --mpi=pmix, srun --mpi=pmi2 nor mpirun makes $size processes one MPI job;" \
        "set LAUNCHER in jobs/site.sh" >&2
    printf %s "$failed" >&2
    rm -f "$errors"
    exit 2
}

# Back into the queue, unless the job was cancelled, or somebody else has requeued it: Slurm gives no reason then. The
# number of one element of an array is that of the whole array.
requeue() {
    local job=$SLURM_JOB_ID
    [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    case $(squeue -h -j "$job" -o "%T %r") in
    COMPLETING*None | PENDING*) echo "$(date '+%F %T') cancelled, or back in the queue already" ;;
    *) scontrol requeue "$job" && echo "$(date '+%F %T') requeued" ;;
    esac
}
