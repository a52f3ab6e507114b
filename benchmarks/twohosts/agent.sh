#!/bin/sh
# What MPICH's launcher calls instead of ssh: [options] HOST COMMAND..., run in the namespace of that name.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" unshare --uts --ipc sh -c "hostname $host; exec $*"
