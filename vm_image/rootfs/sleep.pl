# sleep.pl: guest agent for sleep. Exports database idle time and the reasons against sleep through node_exporter, and
# freezes the database while the VM is saved (docs/sleep-guest.md). Requests are lines in a FIFO, "freeze|spare TAG
# TEXT" (daemon.sh); responses are "TAG STATUS TEXT" in one FIFO per kind. PUT /thaw and PUT /clock have a port of their
# own, served in this process: right after a wake all code is cold, and starting a program would take a tenth of a second.
#
# Rules: a /freeze whose caller has hung up is dropped, because no /thaw may follow it. A frozen database thaws after
# $HELD seconds of monotonic time, which does not advance while the VM is saved, or when this program restarts, so no
# failure leaves it frozen. All durations are monotonic, because a wake moves the wall clock by hours. Only the perl
# binary is available; the image has no modules.
use strict;
use warnings;

my $proc  = $ENV{AUTOSCALE_PROC}  // '/proc';
my $group = $ENV{AUTOSCALE_GROUP} // '/sys/fs/cgroup/work';
my $run   = $ENV{AUTOSCALE_RUN}   // '/run';
my $data  = $ENV{AUTOSCALE_DATA}  // '/var/lib/postgresql/data';
my $query = $ENV{AUTOSCALE_QUERY} // '/usr/lib/autoscale/quiet.sql';
my $clock = $ENV{AUTOSCALE_CLOCK} // '/sys/class/rtc/rtc0/since_epoch';
my $every = $ENV{AUTOSCALE_EVERY} // 15;    # seconds between queries of the database
my $token = $ENV{AUTOSCALE_TOKEN} // '';
my $at    = $ENV{AUTOSCALE_AT}    // '0.0.0.0:25185';
my $link  = $ENV{AUTOSCALE_DEVICE} // '';    # the only interface to listen on, if given
my $HELD  = $ENV{AUTOSCALE_HELD}  // 10;

my $PATIENCE  = 5;         # seconds for the database to answer, which may be short of CPU
my $STILL     = 1;         # seconds for the cgroup to freeze
my $MARGIN    = 24 << 20;  # bytes of free memory to leave alone
my $PART      = 8 << 20;   # bytes per allocation
my $CLOCK_OFF = 2;         # clock lag in seconds that indicates a sleep; the RTC has whole seconds
my %WAITS = map { $_ => 1 } 7, 23, 232, 270, 271, 281, 441;    # poll, select, epoll_wait and their like

my ($seen, $active_at, $looked_at);    # last row; monotonic times
my ($held_until, $asked, $answers) = (undef, 0, '');

sub now { my $b = "\0" x 16; syscall(228, 1, $b); my ($s, $n) = unpack 'qq', $b; $s + $n / 1e9 }

sub slurp {
    open my $file, '<', $_[0] or return '';
    local $/;
    <$file> // '';
}

sub write_to {
    my ($path, $text) = @_;
    open my $file, '>', $path or return;
    syswrite $file, $text;
}

# Waits until one of the files is readable, and returns it; nothing on timeout.
sub first_of {
    my ($until, @files) = @_;
    my $reads = '';
    vec($reads, fileno $_, 1) = 1 for @files;
    my $left = $until - now();
    $left > 0 && select($reads, undef, undef, $left) > 0 or return;
    (grep { vec $reads, fileno $_, 1 } @files)[0];
}

# A client that has sent its whole request has nothing more to read, unless it has hung up.
sub has_hung_up {
    my ($file) = @_;
    my $reads = '';
    vec($reads, fileno $file, 1) = 1;
    select($reads, undef, undef, 0) > 0;
}

# The process that serves a /freeze (daemon.sh) has the caller's connection as its standard input. Its shell may have
# taken seconds to start, but the kernel knows at once that the caller has hung up.
sub has_caller {
    my ($server) = @_;
    my $input = readlink "$proc/$server/fd/0" // return;
    my ($socket) = $input =~ /^socket:\[(\d+)\]$/ or return 1;    # no connection, as in a test
    grep { slurp("$proc/net/$_") =~ /^ *\d+: \S+ \S+ 01(?: +\S+){5} +$socket /m } qw(tcp tcp6);
}

# Waits for an exceptional condition (POLLPRI) on the file; false on timeout.
sub is_marked {
    my ($file, $until) = @_;
    my $marks = '';
    vec($marks, fileno $file, 1) = 1;
    my $left = $until - now();
    $left > 0 && select(undef, undef, $marks, $left) > 0;
}

# --- database state ---

sub server { split /\n/, slurp("$data/postmaster.pid") }
sub is_ready { ((server())[7] // '') =~ /^ready/ }

# One row of quiet.sql, through the persistent psql (database.sh). The number identifies late answers.
sub row {
    my ($from) = @_;
    return if !is_ready();
    my ($number, $until) = (++$asked, now() + $PATIENCE);
    open my $ask, '+<', "$run/autoscale.ask" or return;
    syswrite $ask, "\n\\o $run/autoscale.quiet\n\\qecho =$number\n\\i $query\n\\o\n";
    while (1) {
        return $1 if $answers =~ s/\A.*^=$number\n([^\n]*)\n//ms;
        first_of($until, $from) && sysread $from, $answers, 4096, length $answers or return;
        $answers = substr $answers, -65_536 if length $answers > 65_536;
    }
}

# Queries the database and updates the time of the last client activity. Any change since the last query is activity.
# What happened before the first query, or while the database did not answer, is unknown.
sub look {
    my ($from) = @_;
    my $row = row($from);
    my ($before, $now) = ($seen, now());
    $seen = undef;
    defined $row or return;
    my %new;
    @new{qw(own sessions begun changed age archived reasons others)} = split /\|/, $row, -1;
    defined $new{others} or return;
    if (!$before || $new{reasons} =~ /transaction/ || grep { $before->{$_} ne $new{$_} } qw(sessions begun)) {
        $active_at = $now;
    }
    elsif ($before->{changed} ne $new{changed}) {
        my $at = $now - ($new{age} > 0 ? $new{age} : 0);
        $active_at = $at > $looked_at ? $at : $looked_at;
    }
    $looked_at = $now;
    $seen = \%new;
}

# Reasons against sleep. A partial WAL segment is archived only after archive_timeout.
sub reasons {
    my %reasons = map { $_ => 1 } split / /, $seen->{reasons};
    $reasons{archiving} = 1 if $seen->{archived} && now() - $active_at < $seen->{archived};
    sort keys %reasons;
}

# Without an answer no metrics are exported, so that the database is not taken for idle.
sub publish {
    my $page = "$run/autoscale.metrics/database.prom";
    return unlink $page if !$seen;
    my $text = "# HELP autoscale_database_quiet_seconds Time since a client of the database last did something.\n"
      . "# TYPE autoscale_database_quiet_seconds gauge\n"
      . sprintf("autoscale_database_quiet_seconds %d\n", now() - $active_at)
      . "# HELP autoscale_database_awake Reasons for which the machine must not sleep now.\n"
      . "# TYPE autoscale_database_awake gauge\n";
    $text .= "autoscale_database_awake{reason=\"$_\"} 1\n" for reasons();
    write_to("$page.new", $text);
    rename "$page.new", $page;
}

# --- freezing the database ---

# The kernel signals a change of cgroup.events only to readers that have read it before.
sub hold {
    my $until = now() + $STILL;
    open my $events, '<', "$group/cgroup.events" or return;
    write_to("$group/cgroup.freeze", 1) or return;
    while (1) {
        sysseek $events, 0, 0;
        sysread $events, my $text, 4096 or return;
        return 1 if $text =~ /^frozen 1$/m;
        is_marked($events, $until) or return;
    }
}

sub let_go { $held_until = undef; write_to("$group/cgroup.freeze", 0) }

# Reason why the frozen database is not idle; nothing if it is. The query just before listed background processes.
# A session must have the title "idle" and also wait in a system call, because it may have read a query without having
# updated its title yet. The postmaster must wait likewise, because it accepts new connections.
sub unrest {
    my ($server, $port) = (server())[0, 3];
    defined $port or return 'the server has ended';
    my %known = map { $_ => 1 } $seen->{own}, split / /, $seen->{others};
    for my $number (slurp("$group/cgroup.procs") =~ /^(\d+)$/mg) {
        next if $known{$number};
        my ($call) = slurp("$proc/$number/syscall") =~ /^(\d+)/;
        my $waits = defined $call && $WAITS{$call};
        if ($number == $server) { $waits or return 'the server is about to do something'; next }
        my $title = slurp("$proc/$number/cmdline");
        next if $title =~ /\Apostgres: (?:[^\0]*: )?logger \0*\z/;
        my ($doing) = $title =~ /\Apostgres: [^\0]*(?:\(\d+\)|\[local\]) ([^\0]+)/ or return 'a process has just begun';
        return "a session does something: $doing" if $doing ne 'idle';
        return 'a session is about to do something' if !$waits;
    }
    connections_unrest($port);
}

sub connections_unrest {
    my $port = sprintf '%04X', $_[0];
    for my $line (map { split /\n/, slurp("$proc/net/$_") } qw(tcp tcp6)) {
        my ($state, $unsent, $unread) =
          $line =~ /^\s*\d+: [0-9A-F]+:$port [0-9A-F]+:[0-9A-F]{4} ([0-9A-F]{2}) ([0-9A-F]{8}):([0-9A-F]{8}) / or next;
        return 'a connection is being made' if $state eq '03' || $state eq '0A' && hex $unread;
        return 'a connection is being closed' if $state eq '08';
        return 'a client has sent something' if hex $unread;
        return 'a client has not confirmed all of an answer' if hex $unsent;
    }
}

# Otherwise it would wait on, and take the answer to the next /freeze.
sub dismiss { kill 'TERM', $_[0]; return }

sub freeze {
    my ($from, $server) = @_;
    return dismiss($server) if !has_caller($server);
    if (!defined $held_until) {
        look($from);
        publish();
        # Looking may take seconds.
        return dismiss($server) if !has_caller($server);
        return (409, "the database does not say within $PATIENCE s whether it is quiet") if !$seen;
        my @reasons = reasons();
        return (409, "the database must not sleep now: @reasons") if @reasons;
    }
    my $why = hold() ? unrest() : "the database did not stand still within $STILL s";
    if ($why) {
        let_go();
        return (409, $why);
    }
    $held_until = now() + $HELD;
    (200, qq({"sessions": $seen->{sessions}}));
}

# --- waking ---

# Sets the clock before the database resumes. A request with a time follows a sleep, so quiet time restarts; one without
# follows an aborted sleep.
sub thaw {
    my ($text) = @_;
    if (length $text) {
        my @result = set_clock($text);
        return @result if $result[0] != 200;
    }
    let_go();
    (200, 'the database runs');
}

sub set_clock {
    my ($seconds, $part) = $_[0] =~ /\A(\d{1,10})\.(\d{9})\z/ or return (400, 'the time is SECONDS.NANOSECONDS');
    syscall(227, 0, pack 'qq', $seconds, $part) == 0 or return (500, "the clock cannot be set: $!");
    (200, 'the clock is set');
}

sub woken { $active_at = $looked_at = now(); publish() }

# No /thaw came. If the VM has slept all the same, set the clock from the RTC, which has whole seconds.
sub let_go_by_itself {
    my ($is) = slurp($clock) =~ /^(\d+)/;
    my $has_slept = defined $is && $is - time > $CLOCK_OFF;
    syscall(227, 0, pack 'qq', $is, 500_000_000) if $has_slept;
    let_go();
    woken() if $has_slept;
}

# --- shrinking the saved memory ---

# Zero pages take no space in the saved memory, so allocate the free memory, which zeroes it, and release it. MADV_FREE
# at once keeps it available, so that the VM does not look short of memory. Dirty pages stay, but an idle database has
# none. Compacting first gathers what remains in fewer huge pages: the host's kernel zeroes each of them as a whole when
# the memory is loaded. Runs in a child, so that requests are served meanwhile.
sub spare {
    my ($tag) = @_;
    my $child = fork // return (500, "no process could be started: $!");
    return if $child;
    write_to("$proc/sys/vm/drop_caches", 3);
    write_to("$proc/sys/vm/compact_memory", 1);
    my ($free) = slurp("$proc/meminfo") =~ /^MemFree:\s+(\d+)/m;
    for (my $left = 1024 * ($free // 0) - $MARGIN; $left > 0; $left -= $PART) {
        my $at = syscall 9, 0, $PART, 3, 0x8022, -1, 0;    # mmap: MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE
        last if $at < 0;
        syscall 28, $at, $PART, 8;
    }
    answer('spare', $tag, 200, 'what was not needed is gone');
    exit;
}

# --- requests ---

# O_NONBLOCK: without a reader the response is dropped.
sub answer {
    my ($kind, $tag, $status, $text) = @_;
    sysopen my $to, "$run/autoscale.$kind", 1 | 2048 or return;
    syswrite $to, "$tag $status $text\n";
}

sub carry_out {
    my ($line, $from) = @_;
    my ($kind, $tag, $text) = $line =~ /\A(freeze|spare) (\d+) ?(.*)\z/ or return;
    my @result = $kind eq 'freeze' ? freeze($from, $tag) : spare($tag);
    answer($kind, $tag, @result) if @result;
}

sub listening {
    my ($host, $port) = $at =~ /\A(.*):(\d+)\z/;
    socket my $door, 2, 1, 0 or die "socket: $!\n";
    setsockopt $door, 1, 2, pack 'l', 1;
    !length $link || setsockopt $door, 1, 25, "$link\0" or die "$link: $!\n";    # SO_BINDTODEVICE
    bind $door, pack 'Sna4x8', 2, $port, pack 'C4', split /\./, $host or die "$at: $!\n";
    listen $door, 8 or die "$at: $!\n";
    $door;
}

# Serves one request; drops a client that sends nothing for a second.
sub answer_at {
    my ($door) = @_;
    accept my $caller, $door or return;
    my ($text, $until) = ('', now() + 1);
    until ($text =~ /\r\n\r\n(.*)\z/s && length $1 >= ($text =~ /^content-length: *(\d{1,3})\r$/mi ? $1 : 0)) {
        length $text < 2048 && first_of($until, $caller) && sysread $caller, $text, 1024, length $text or return;
    }
    my ($body) = $text =~ /\r\n\r\n(.*)\z/s;
    my ($path, $word) = $text =~ m{\APUT /(thaw|clock)(?:\?(\S*))? HTTP};
    # This program was busy, and by now the time is old. The client sends a new one.
    return if defined $path && $path eq 'clock' && has_hung_up($caller);
    my ($status, $said) = !defined $path ? (404, 'there are PUT /thaw and PUT /clock')
      : length $token && ($word // '') ne $token ? (401, 'missing or wrong guest token')
      : $path eq 'clock'                         ? set_clock($body)
      :                                            thaw($body);
    syswrite $caller, "HTTP/1.1 $status Thaw\r\nContent-Length: " . length($said) . "\r\nConnection: close\r\n\r\n$said";
    close $caller;
    # After the response, because the runner waits for it.
    woken() if $status == 200 && $path eq 'thaw' && length $body;
}

sub serve {
    my ($orders, $from, $door) = @_;
    my ($text, $next, $was_ready) = ('', now(), 0);
    while (1) {
        my $ready = first_of(defined $held_until ? $held_until : $next, $door, $orders);
        answer_at($door) if $ready && $ready == $door;
        if ($ready && $ready == $orders) {
            sysread $orders, $text, 4096, length $text;
            carry_out($1, $from) while $text =~ s/\A([^\n]*)\n//;
        }
        let_go_by_itself() if defined $held_until && now() >= $held_until;
        next if defined $held_until || now() < $next;
        # Skip the first query after the start: a guest that boots beside many others is short of CPU.
        my $is_ready = is_ready();
        $is_ready && $was_ready ? look($from) : ($seen = undef);
        publish();
        $next = now() + $every;
        $was_ready = $is_ready;
    }
}

$SIG{PIPE} = $SIG{CHLD} = 'IGNORE';
write_to("$proc/self/oom_score_adj", -1000);
let_go();    # left frozen by a previous run
publish();
open my $orders, '+<', "$run/autoscale.sleep" or die "sleep: $!\n";
open my $from, '+<', "$run/autoscale.quiet" or die "quiet: $!\n";
serve($orders, $from, listening());
