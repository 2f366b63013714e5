# monitor.pl [ADDRESS]: the guest's side of NeonVM's monitor protocol, a WebSocket server on ADDRESS:10301 (default: all
# addresses) and the interface AUTOSCALE_DEVICE (default: all). The agent asks it before it removes memory, and notifies it
# after adding memory. It requests memory if the database lacks it and, in version 2, reports load as it begins.
#
# Rules: it is event-driven (PSI triggers, memory.events), except for reading one number twice a second, and a few reads after
# a small stall. It serves only the newest agent. Only the perl binary is available; the image has no modules.
use strict;
use warnings;

my $proc   = $ENV{AUTOSCALE_PROC}  // '/proc';
my $group  = $ENV{AUTOSCALE_GROUP} // '/sys/fs/cgroup/work';
my $port   = $ENV{AUTOSCALE_PORT}  // 10301;
my $device = $ENV{AUTOSCALE_DEVICE} // '';
my $listen = pack('S n C4 x8', 2, $port, split /\./, $ARGV[0] || '0.0.0.0');

my $MIB             = 1024 * 1024;
my $KERNEL          = 100 * $MIB;    # part of the VM's memory that the guest's kernel keeps
my $LONGEST_MESSAGE = 4096;
my $MOST_UNSENT     = 65_536;
my $GREETING        = 5;             # seconds for an agent's first message
my $TICK            = 0.5;
my $LOOK            = 0.06;          # seconds to measure the load after the kernel has reported waiting tasks
my $LOOK_AGAIN      = 0.1;           # then again, each time twice as long, until the end of $WINDOW
my $WINDOW          = 0.5;           # seconds, the window of the trigger: the kernel reports at most once in it
my $LEAST_STALL     = 0.2;
my @PAUSE           = (0.2, 2.0);    # seconds between reports: minimum, and maximum while a load continues
my $ASK_EVERY       = 1.0;
my $BURST           = 4;             # processes that the database started within a second
my $MOST_TITLES     = 100;           # processes whose titles are read for one report, which must not be late
my $SHRINK          = 10;            # seconds for which an approved shrink is guarded

my (%client, $agent);                # clients by file number; $agent is the one in use
my ($count, $asked_at, $reported_at, $pause) = (1, -9, -9, $PAUSE[0]);
my ($began, $span, $look_until) = (undef, $LOOK, 0);
my ($guard_until, $guarded) = (0, 0);
my ($pids, @processes);              # number of processes of the database's group, now and within the last second

sub now { my $b = "\0" x 16; syscall(228, 1, $b); my ($s, $n) = unpack 'qq', $b; $s + $n / 1e9 }

sub slurp {
    open my $file, '<', $_[0] or return '';
    local $/;
    <$file> // '';
}

# Reads a file of the kernel that stays open, because it is read often.
sub again {
    my ($file) = @_;
    $file && sysseek $file, 0, 0 or return 0;
    sysread $file, my $text, 4096;
    $text || 0;
}

sub write_to {
    my ($path, $text) = @_;
    open my $file, '>', $path or return;
    syswrite $file, $text;
}

# Opens a file that the kernel marks on events; a trigger exists as long as the file is open.
sub marked {
    my ($path, $trigger) = @_;
    open my $file, $trigger ? '+<' : '<', $path or return;
    !$trigger or defined syswrite($file, "$trigger\0") or return;
    sysread $file, my $seen, 4096;
    $file;
}

# --- what the database does ---

sub reading {
    my ($stall) = slurp("$group/cpu.pressure") =~ /^some .*total=(\d+)/m;
    my ($used) = slurp("$group/cpu.stat") =~ /^usage_usec (\d+)/m;
    { at => now(), stall => $stall // 0, used => $used // 0 };
}

# The number of the database's processes, and its increase over the minimum of the last second.
sub processes {
    my $now = again($pids) + 0;
    my $least = $now;
    for (@processes) { $least = $_ if $_ < $least }
    ($now, $now - $least);
}

# The number of active connections, and of those waiting for a lock, from the titles of postgres' processes; only the newest
# if there are many.
sub connections {
    my ($active, $waiting) = (0, 0);
    my @numbers = slurp("$group/cgroup.procs") =~ /^(\d+)$/mg;
    splice @numbers, 0, -$MOST_TITLES if @numbers > $MOST_TITLES;
    for (@numbers) {
        my ($doing) = slurp("$proc/$_/cmdline") =~ /^postgres: .*(?:\(\d+\)|\[local\]) ([^\0]+)/s or next;
        next if $doing =~ /^idle/;
        $active++;
        $waiting++ if $doing =~ / waiting$/;
    }
    ($active, $waiting);
}

sub report {
    my ($cause, $before, $after) = @_;
    my $since = now() - $reported_at;
    return if !$agent || $agent->{version} < 2 || $since < $pause;
    $pause = $since > 2 * $PAUSE[1] ? $PAUSE[0] : at_most($PAUSE[1], 2 * $pause);
    $reported_at = now();
    my $span = $after->{at} - $before->{at};
    my ($running) = slurp("$proc/loadavg") =~ m{(\d+)/\d};
    my ($processes, $new) = processes();
    send_message($agent, 'LoadReport', next_id(), sprintf
        '"cause":"%s","span":%.3f,"cpuBusy":%.3f,"cpuStall":%.3f,"runnable":%d,"processes":%d,"newProcesses":%d,'
          . '"active":%d,"waiting":%d',
        $cause, $span, ($after->{used} - $before->{used}) / 1e6 / $span,
        at_most(1, ($after->{stall} - $before->{stall}) / 1e6 / $span), $running // 0, $processes, $new,
        connections());
}

sub at_most { $_[0] < $_[1] ? $_[0] : $_[1] }

# A measurement begins when the kernel reports waiting tasks of the database. If there is no load, the stall was small, and
# the kernel does not report another one within the window.
sub marked_by_kernel {
    return if $began;
    ($began, $span, $look_until) = (reading(), $LOOK, now() + $WINDOW);
}

sub look {
    my $after = reading();
    return if $after->{at} - $began->{at} < $span;
    my $share = ($after->{stall} - $began->{stall}) / 1e6 / ($after->{at} - $began->{at});
    my $is_load = $share >= $LEAST_STALL;
    report('cpu', $began, $after) if $is_load;
    my $left = $look_until - $after->{at};
    $span = at_most($span == $LOOK ? $LOOK_AGAIN : 2 * $span, $left);
    $began = $is_load || $left < $LOOK ? undef : $after;
}

sub tick {
    my ($processes, $new) = processes();
    push @processes, $processes;
    shift @processes if @processes > 1 / $TICK;
    if ($new >= $BURST) {
        my $before = reading();
        select undef, undef, undef, 0.02;
        report('connections', $before, reading());
    }
    guard();
}

# --- memory ---

# In bytes: memory that cannot be freed without swapping, and total memory.
sub memory {
    my $text = slurp("$proc/meminfo");
    my ($total) = $text =~ /^MemTotal:\s+(\d+)/m;
    my ($free)  = $text =~ /^MemAvailable:\s+(\d+)/m;
    (1024 * (($total // 0) - ($free // 0)), 1024 * ($total // 0));
}

sub ask_for_memory {
    return if !$agent || now() - $asked_at < $ASK_EVERY;
    $asked_at = now();
    send_message($agent, 'UpscaleRequest', next_id(), '');
}

# A shrink is approved if the programs' memory fits with some headroom, and nothing waits for memory.
sub objection {
    my ($target) = @_;
    my ($used) = memory();
    my $room = $target - $KERNEL;
    my $needed = $used + at_most(64 * $MIB, $room > 0 ? $room / 8 : 0);
    return sprintf 'programs use %d MiB, and %d MiB would be left for them', $used / $MIB, $room / $MIB if $needed > $room;
    my ($waiting) = slurp("$group/memory.pressure") =~ /^some avg10=([\d.]+)/m;
    return "tasks wait for memory $waiting% of the time" if ($waiting // 0) >= 10;
    undef;
}

# Until the memory is removed, memory.high is the remaining amount, so that the database frees memory in advance.
sub shrink {
    my ($target) = @_;
    my ($used, $total) = memory();
    my ($held) = slurp("$group/memory.current") =~ /^(\d+)/;
    my $outside = $used > ($held // 0) ? $used - ($held // 0) : 0;
    my $high = $target - $KERNEL - $outside;
    return if $high <= 0 || !defined $held || $target >= $total;
    ($guard_until, $guarded) = (now() + $SHRINK, $target - $KERNEL);    # first: setting the limit may take the kernel long
    write_to("$group/memory.high", int $high);
}

# If the limit cannot be removed, retry at each tick.
sub release { $guard_until = 0 if !$guard_until || write_to("$group/memory.high", 'max') }

sub guard { release() if $guard_until && now() > $guard_until }

# The kernel reports tasks that wait for memory, or a limit that was reached. Memory is requested if programs fill the total,
# or what an approved shrink will leave; the agent finds out by itself if the page cache needs more.
sub memory_is_short {
    my ($used, $total) = memory();
    my $room = $guard_until ? at_most($guarded, $total) : $total;
    return if $used + $room / 8 <= $room;
    release();
    ask_for_memory();
}

# --- messages ---

sub next_id { $count += 2 }

sub send_message {
    my ($to, $type, $id, $fields) = @_;
    send_frame($to, 1, sprintf '{%s"type":"%s","id":%d}', length $fields ? "$fields," : '', $type, $id);
}

sub received {
    my ($from, $text) = @_;
    return greeted($from, $text) if !$from->{version};
    my ($type) = $text =~ /"type"\s*:\s*"(\w+)"/;
    my ($id) = $text =~ /"id"\s*:\s*(\d{1,18})/;
    my ($mem) = $text =~ /"mem"\s*:\s*(\d{1,18})/;
    $type //= '';
    if (!defined $id) { send_message($from, 'InvalidMessage', 0, '"error":"a message needs an id"') }
    elsif ($type eq 'HealthCheck') { send_message($from, 'HealthCheck', $id, '') }
    elsif ($type eq 'UpscaleNotification' && defined $mem) { release(); send_message($from, 'UpscaleConfirmation', $id, '') }
    elsif ($type eq 'DownscaleRequest' && defined $mem) {
        my $said = objection($mem);
        shrink($mem) if !$said;
        send_message($from, 'DownscaleResult', $id,
            sprintf '"Ok":%s,"Status":"%s"', $said ? 'false' : 'true', $said // 'there is room');
    }
    elsif ($type ne 'InvalidMessage' && $type ne 'InternalError') {
        send_message($from, 'InvalidMessage', $id, '"error":"neither type nor fields are of this protocol"');
    }
}

sub greeted {
    my ($from, $text) = @_;
    my ($min) = $text =~ /"min"\s*:\s*(\d{1,4})/;
    my ($max) = $text =~ /"max"\s*:\s*(\d{1,4})/;
    if (!defined $min || !defined $max || $min > 2 || $max < 1 || $min > $max) {
        send_frame($from, 1, '{"error":"this monitor speaks versions 1 to 2"}');
        return finish($from, 1002);
    }
    drop($agent) if $agent;
    $from->{version} = at_most($max, 2);
    $agent = $from;
    send_frame($from, 1, sprintf '{"version":%d}', $from->{version});
}

# --- WebSocket (RFC 6455) ---

sub rol { (($_[0] << $_[1]) | ($_[0] >> (32 - $_[1]))) & 0xffffffff }

sub sha1 {
    my ($text) = @_;
    my @h = (0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0);
    my $padded = $text . "\x80" . "\0" x ((55 - length $text) % 64) . pack 'Q>', 8 * length $text;
    while (length $padded) {
        my @w = unpack 'N16', substr $padded, 0, 64, '';
        push @w, rol($w[-3] ^ $w[-8] ^ $w[-14] ^ $w[-16], 1) for 16 .. 79;
        my ($a, $b, $c, $d, $e) = @h;
        for (0 .. 79) {
            my ($f, $k) =
                $_ < 20 ? (($b & $c) | (~$b & $d), 0x5a827999)
              : $_ < 40 ? ($b ^ $c ^ $d, 0x6ed9eba1)
              : $_ < 60 ? (($b & $c) | ($b & $d) | ($c & $d), 0x8f1bbcdc)
              :           ($b ^ $c ^ $d, 0xca62c1d6);
            ($a, $b, $c, $d, $e) = ((rol($a, 5) + ($f & 0xffffffff) + $e + $k + $w[$_]) & 0xffffffff, $a, rol($b, 30), $c, $d);
        }
        my @add = ($a, $b, $c, $d, $e);
        $h[$_] = ($h[$_] + $add[$_]) & 0xffffffff for 0 .. 4;
    }
    pack 'N5', @h;
}

sub base64 { my $t = pack 'u', $_[0]; $t =~ s/^.(.*)\n/$1/; $t =~ tr{` -_}{AA-Za-z0-9+/}; substr($t, -1) = '='; $t }

sub upgraded {
    my ($from) = @_;
    $from->{in} =~ s/\A(.*?)\r\n\r\n//s or return length $from->{in} > $LONGEST_MESSAGE ? drop($from) : undef;
    my $head = $1;
    my ($key) = $head =~ m{^Sec-WebSocket-Key:\s*([A-Za-z0-9+/]{22}==)\s*$}im;
    if ($head !~ m{\AGET /monitor HTTP/1\.1} || !defined $key) {
        $from->{out} .= "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        $from->{ending} = 1;
        return;
    }
    my $accept = base64(sha1($key . '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'));
    $from->{out} .= "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
      . "Sec-WebSocket-Accept: $accept\r\n\r\n";
    $from->{upgraded} = 1;
}

sub send_frame {
    my ($to, $kind, $text) = @_;
    my $length = length $text;
    $to->{out} .= pack($length < 126 ? 'CC' : 'CCn', 0x80 | $kind, $length < 126 ? $length : (126, $length)) . $text;
    flush_to($to);
}

sub finish { my ($from, $code) = @_; send_frame($from, 8, pack 'n', $code); $from->{ending} = 1 }

sub frames {
    my ($from) = @_;
    while (!$from->{ending} && length $from->{in} >= 6) {
        my ($first, $second) = unpack 'CC', $from->{in};
        my ($kind, $is_last, $size, $at) = ($first & 0x0f, $first & 0x80, $second & 0x7f, 2);
        return finish($from, 1002) if !($second & 0x80) || $kind > 7 && !$is_last;
        ($size, $at) = (unpack('x2 n', $from->{in}), 4) if $size == 126;
        return finish($from, 1009) if $size == 127 || $size > $LONGEST_MESSAGE;
        return if length $from->{in} < $at + 4 + $size;
        my $mask = substr $from->{in}, $at, 4;
        my $text = substr($from->{in}, $at + 4, $size) ^ substr($mask x ($size / 4 + 1), 0, $size);
        substr $from->{in}, 0, $at + 4 + $size, '';
        if ($kind < 2) { part($from, $kind, $is_last, $text) }
        elsif ($kind == 8) { return finish($from, 1000) }
        elsif ($kind == 9) { send_frame($from, 10, substr $text, 0, 125) }
        elsif ($kind != 10) { return finish($from, 1003) }
    }
}

# Messages may be fragmented: NeonVM's agents up to v0.48 end each with an empty fragment.
sub part {
    my ($from, $begins, $is_last, $text) = @_;
    return finish($from, 1002) if $begins == defined $from->{begun};
    $from->{begun} = ($from->{begun} // '') . $text;
    return finish($from, 1009) if length $from->{begun} > $LONGEST_MESSAGE;
    received($from, delete $from->{begun}) if $is_last;
}

# --- connections ---

sub drop {
    my ($gone) = @_;
    defined fileno $gone->{socket} or return;
    delete $client{fileno $gone->{socket}};
    close $gone->{socket};
    if ($agent && $agent == $gone) { $agent = undef; release() }
}

sub flush_to {
    my ($to) = @_;
    while (length $to->{out}) {
        my $sent = syswrite $to->{socket}, $to->{out};
        last if !defined $sent;
        substr $to->{out}, 0, $sent, '';
    }
    $to->{ending} = 1 if length $to->{out} > $MOST_UNSENT;
}

sub accept_from {
    my ($server) = @_;
    accept(my $socket, $server) or return;
    fcntl $socket, 4, 2048;
    setsockopt $socket, 6, 1, 1;
    return close $socket if keys %client >= 8;
    $client{fileno $socket} = { socket => $socket, in => '', out => '', since => now(), version => 0 };
}

sub readable {
    my ($from) = @_;
    my $read = sysread $from->{socket}, $from->{in}, 16_384, length $from->{in};
    return drop($from) if !$read;
    upgraded($from) if !$from->{upgraded};
    frames($from) if $from->{upgraded};
    flush_to($from);
}

sub serve {
    my ($server, $cpu, @memory) = @_;
    my $next = now();
    while (1) {
        my ($reads, $writes, $marks) = ('', '', '');
        vec($reads, fileno $_, 1) = 1 for $server, map { $_->{socket} } values %client;
        vec($writes, fileno $_->{socket}, 1) = 1 for grep { length $_->{out} } values %client;
        vec($marks, fileno $_, 1) = 1 for grep { $_ } $cpu, @memory;
        my $wait = $next - now();
        $wait = at_most($wait, $began->{at} + $span - now()) if $began;
        select $reads, $writes, $marks, $wait > 0.001 ? $wait : 0.001;
        for (grep { $_ && vec $marks, fileno $_, 1 } @memory) { sysseek $_, 0, 0; sysread $_, my $seen, 4096; memory_is_short() }
        if ($cpu && vec $marks, fileno $cpu, 1) { marked_by_kernel() }
        look() if $began;
        accept_from($server) if vec $reads, fileno $server, 1;
        for my $one (my @now = values %client) {
            my $number = fileno $one->{socket} // next;
            flush_to($one) if vec $writes, $number, 1;
            readable($one) if vec $reads, $number, 1;
        }
        drop($_) for grep { $_->{ending} || !$_->{version} && now() - $_->{since} > $GREETING } my @left = values %client;
        if (now() >= $next) { tick(); $next = now() + $TICK }
    }
}

open $pids, '<', "$group/pids.current" or $pids = undef;
$SIG{PIPE} = 'IGNORE';
write_to("$group/memory.high", 'max');    # a previous monitor may have ended during a shrink
syscall 151, 3;    # mlockall: its own memory is never swapped or reclaimed
socket my $server, 2, 1, 0 or die "socket: $!\n";
setsockopt $server, 1, 2, 1;
!length $device || setsockopt $server, 1, 25, "$device\0" or die "$device: $!\n";    # SO_BINDTODEVICE
bind $server, $listen or die "bind: $!\n";
listen $server, 8 or die "listen: $!\n";
fcntl $server, 4, 2048;
serve(
    $server,
    marked("$group/cpu.pressure", sprintf('some 20000 %d', $WINDOW * 1e6)),
    marked("$group/memory.pressure", 'some 50000 1000000'),
    marked("$group/memory.events"),
);
