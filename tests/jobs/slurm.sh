#!/usr/bin/env bash
# A Slurm cluster of one node for the tests, without systemd:   slurm.sh start DIR [CPUS]   slurm.sh stop DIR
#
# Everything lies in DIR, which must be new and short (socket names end at 108 characters); ports are free ones. After
# `start`, SLURM_CONF=DIR/slurm.conf is all that sbatch and the others need. Wants Debian's slurm-wlm and munge, and
# root; libpmix-dev besides makes `srun --mpi=pmix` work, for Debian's plugin looks for a library by its unversioned name.
# Node `plain`, in the partition of that name, has no GPU, the other one has four: files that Slurm only counts. Both are
# in partition `both`. Components of a heterogeneous job go to different nodes, want sched/backfill and each a time limit.
# `config_overrides` lets the node have more CPUs than the machine; jobs are not bound to any. Partition `urgent` preempts
# `main`; a requeued job waits for cred_expire seconds.
set -euo pipefail
export PATH=$PATH:/usr/sbin

start() {
    local dir=$1 cpus=$2 host user
    host=$(hostname -s) user=$(id -un)
    [ ! -e "$dir/slurm.conf" ] || { echo "$dir: holds a cluster already" >&2; exit 2; }
    mkdir -p "$dir"/{munge,state,spool}
    chmod 755 "$dir" "$dir"/*
    head -c 1024 /dev/urandom >"$dir/munge/key"
    chmod 400 "$dir/munge/key"
    munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
        --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
    read -r control node plain < <(free_ports)
    cat >"$dir/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$control
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket,cred_expire=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool-%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd-%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
ReturnToService=2
SlurmdParameters=config_overrides
MpiDefault=none
# MPICH names shared memory by job and step: what an earlier cluster's jobs left must not be taken for this one's.
FirstJobId=$((RANDOM % 60000 + 1))
MaxJobId=67043328
# Seconds from SIGTERM to SIGKILL when a job is cancelled or has used up its time.
KillWait=30
OverTimeLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 Port=$node CPUs=$cpus Gres=gpu:4 State=UNKNOWN
NodeName=plain NodeHostname=$host NodeAddr=127.0.0.1 Port=$plain CPUs=4 State=UNKNOWN
PartitionName=main Nodes=$host Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=30
PartitionName=urgent Nodes=$host MaxTime=INFINITE PriorityTier=2 PreemptMode=off
PartitionName=plain Nodes=plain MaxTime=INFINITE PriorityTier=1 GraceTime=30
PartitionName=both Nodes=$host,plain MaxTime=INFINITE PriorityTier=1 GraceTime=30
END
    for device in null zero full random; do echo "NodeName=$host Name=gpu File=/dev/$device"; done >"$dir/gres.conf"
    export SLURM_CONF=$dir/slurm.conf
    slurmctld
    for name in "$host" plain; do
        mkdir "$dir/spool-$name"
        slurmd -N "$name"
    done
    for _ in $(seq 300); do
        [ "$(sinfo -h -N -o '%N %t' 2>/dev/null | sort -u | grep -c ' idle')" = 2 ] && return
        sleep 0.1
    done
    echo "slurm.sh: the node did not come up" >&2
    tail -n 5 "$dir"/*.log >&2
    stop "$dir"
    return 1
}

free_ports() {
    python3 -c '
import socket
sockets = [socket.socket() for _ in range(3)]
for s in sockets:
    s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))'
}

stop() {
    local dir=$1 file
    export SLURM_CONF=$dir/slurm.conf
    for state in pending running; do
        timeout 20 scancel --state=$state --full --signal=KILL --user="$(id -un)" 2>/dev/null || true
        timeout 20 scancel --state=$state --user="$(id -un)" 2>/dev/null || true
    done
    for _ in $(seq 300); do # slurmstepd ends with its job, and needs slurmd for that
        [ -n "$(timeout 20 squeue -h 2>/dev/null)" ] || break
        sleep 0.1
    done
    for file in "$dir"/slurmd-*.pid "$dir"/{slurmctld.pid,munge/pid}; do
        end "$file"
    done
}

# End the process whose number is in a file.
end() {
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null || return 0
    for _ in $(seq 50); do
        kill -0 "$pid" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
}

case ${1:-} in
start) start "$2" "${3:-8}" ;;
stop) stop "$2" ;;
*) sed -n '2,8s/^# //p' "$0" && exit 2 ;;
esac
