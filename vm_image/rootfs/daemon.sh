#!/bin/sh
# Serves one HTTP request, from standard input to standard output; socat runs this for each connection, with busybox, which
# starts fastest.
#   GET /cpu       the guest's CPU in thousandths, according to the kernel: digits without a newline, for NeonVM's runner
#   PUT /cpu       sets the CPU (the body is the number); responds when it is done
#   GET /ready     200 if the database accepts connections, otherwise 503
#   PUT /password  sets the password of the database's accounts (the body); 503 until the database has it
#   PUT /shutdown  stops the database and powers the machine off
#   PUT /spare     releases unused memory, before a sleep
#   PUT /freeze    freezes the database and returns its number of sessions as JSON; 409 and the reason if it is not idle
#   GET /database  state of the database as JSON: replication and clients (database.sql); 503 if it is not available
export PATH=/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin

answer() {
    printf 'HTTP/1.1 %s\r\nContent-Type: text/plain\r\nContent-Length: %s\r\nConnection: close\r\n\r\n%s' \
        "$1" ${#2} "$2"
    exit
}

get_cpu() {
    # shellcheck source=vm_image/rootfs/cpu-now.sh
    . /usr/lib/autoscale/cpu-now.sh
    # shellcheck disable=SC2154 # the sourced file sets it
    answer "200 OK" "$milli"
}

put_cpu() {
    # The database waits for this, and starting a program takes tens of milliseconds in an emulated guest: flock is the only one.
    order=
    # shellcheck disable=SC3045 # busybox has -n
    case $length in [1-9] | 1[0-9]) IFS= read -r -n "$length" order ;; esac # numbers are not longer
    # One at a time: overlapping orders would leave a mixture of both.
    exec 9>/run/autoscale.cpu
    flock 9
    # In a subshell, because cpu.sh exits on errors (set -e); not in a condition, where set -e has no effect.
    said=$(
        set -- "$order"
        # shellcheck source=vm_image/rootfs/cpu.sh
        . /usr/lib/autoscale/cpu.sh 2>&1
    )
    # shellcheck disable=SC2181 # see above
    [ $? -ne 0 ] || get_cpu
    answer "400 Bad Request" "$said"
}

get_ready() {
    require_ready
    answer "200 OK" "ready"
}

require_ready() {
    # The eighth line of postmaster.pid is the state of the server.
    read -r state <<-END
		$(busybox sed -n 8p /var/lib/postgresql/data/postmaster.pid 2>&1)
	END
    [ "$state" = ready ] || answer "503 Service Unavailable" "the database says: ${state:-it is starting}"
}

require_private_link() {
    # With NeonVM's own runner, the daemon is reachable from the flat network, by other VMs too.
    read -r settings </proc/cmdline
    case " $settings" in *" autoscale.cpu="*) ;; *) answer "404 Not Found" "$path is not available with NeonVM's runner" ;; esac
}

put_password() {
    require_private_link
    case $length in [1-9] | [1-9][0-9] | [1-9][0-9][0-9]) ;; *) answer "400 Bad Request" "a password has 1 to 999 bytes" ;; esac
    # shellcheck disable=SC3045 # busybox has -n
    IFS= read -r -n "$length" password
    said=$(AUTOSCALE_PASSWORD=$password PGCONNECT_TIMEOUT=10 sh /usr/lib/autoscale/password.sh 2>&1) ||
        answer "503 Service Unavailable" "the database does not have the password yet: $said"
    answer "200 OK" "the database has the password"
}

put_shutdown() {
    require_private_link # NeonVM's runner presses the power button instead
    busybox setsid sh /usr/lib/autoscale/shutdown.sh </dev/null >/dev/null 2>&1 &
    answer "200 OK" "shutting down"
}

# order KIND [TEXT]: sends an order to sleep.pl. Each kind has one FIFO for responses, which are tagged with the process id: a
# FIFO per process would cost the start of mkfifo and rm while a client may be waiting.
order() {
    require_private_link
    exec 3<>/run/autoscale."$1" 4<>/run/autoscale.sleep
    printf '%s %s %s\n' "$1" $$ "$2" >&4
    # shellcheck disable=SC3045 # busybox has -t
    while read -r -t 12 tag status said <&3; do
        [ "$tag" = $$ ] || continue
        case $status in
        200) answer "200 OK" "$said" ;;
        409) answer "409 Conflict" "$said" ;;
        400) answer "400 Bad Request" "$said" ;;
        *) answer "500 Internal Server Error" "$said" ;;
        esac
    done
    answer "503 Service Unavailable" "the guest did not respond within 12 s"
}

get_database() {
    require_ready
    # psql (database.sh) writes to this process's own FIFO, which cannot be opened any more when this process has ended.
    fifo=/run/autoscale.$$
    busybox mkfifo -m 600 $fifo
    exec 3<>$fifo 4<>/run/autoscale.ask
    busybox rm $fifo
    printf '\n\\o /proc/%s/fd/3\n\\i /usr/lib/autoscale/database.sql\n\\o\n' $$ >&4
    # shellcheck disable=SC3045 # busybox has it
    if read -r -t 5 said <&3; then
        answer "200 OK" "$said"
    fi
    answer "503 Service Unavailable" "the database did not respond within 5 s"
}

return=$(printf '\r')
read -r method path _
while read -r header value; do
    value=${value%"$return"}
    case $header in
    [Cc]ontent-[Ll]ength:) length=$value ;;
    '' | "$return") break ;;
    esac
done

[ -z "${AUTOSCALE_TOKEN:-}" ] || [ "${path#*\?}" = "$AUTOSCALE_TOKEN" ] ||
    answer "401 Unauthorized" "missing or wrong guest token"
path=${path%%\?*}

case "$method $path" in
"GET /cpu") get_cpu ;;
"PUT /cpu") put_cpu ;;
"GET /ready") get_ready ;;
"GET /database") get_database ;;
"PUT /password") put_password ;;
"PUT /shutdown") put_shutdown ;;
"PUT /spare") order spare ;;
"PUT /freeze") order freeze ;;
*" /cpu" | *" /ready" | *" /database") answer "405 Method Not Allowed" "$path supports only GET; /cpu also supports PUT" ;;
*" /password" | *" /shutdown" | *" /spare" | *" /freeze") answer "405 Method Not Allowed" "$path supports only PUT" ;;
*) answer "404 Not Found" "unknown path; expected /cpu, /ready, /database, /password, /spare, /freeze or /shutdown" ;;
esac
