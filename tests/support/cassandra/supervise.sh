# Runs one node, and ends it as soon as nobody holds the lock of its cluster any more: the system gives a
# lock back whatever makes a holder crash. Arguments: where to write the pid, the log, the lock, the command.
# The node stays this shell's child, so its pid is not given to another process before it is killed here.
trap '' HUP INT
pid_file=$1 log=$2 users=$3
shift 3
"$@" >"$log" 2>&1 </dev/null &
node=$!
echo "$node" >"$pid_file.partial" && mv "$pid_file.partial" "$pid_file"
# Killed under the lock: who has the lock next finds no node that is about to be killed.
flock --exclusive "$users" sh -c 'kill -KILL "$1"' sh "$node" 2>/dev/null
wait "$node"
